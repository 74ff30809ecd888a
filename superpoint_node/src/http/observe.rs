//! Around every request: its id, a line in the log, its count.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument as _;

use super::app::App;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A longer id of a client's is replaced: it stands in every line of the log.
const LONGEST_ID: usize = 128;

/// Counts the request as abandoned, unless it was answered.
struct Abandoned<'a>(Option<&'a App>);

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        if let Some(app) = self.0 {
            app.metrics.abandoned();
            tracing::info!("the client went away");
        }
    }
}

pub(super) async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let id = id_of(&request);
    let span = tracing::info_span!(
        "request",
        id = id.to_str().unwrap_or_default(),
        method = %request.method(),
        path = request.uri().path()
    );
    let observed = async {
        let mut abandoned = Abandoned(Some(&app));
        let response = next.run(request).await;
        abandoned.0 = None;
        let status = response.status().as_u16();
        app.metrics.request(&route, status);
        tracing::info!(status, milliseconds = start.elapsed().as_secs_f64() * 1e3, "answered");
        response
    };
    let mut response = observed.instrument(span).await;
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// The client's id, so that its log and this one can be read together, or a new one.
fn id_of(request: &Request) -> HeaderValue {
    let theirs = request.headers().get(REQUEST_ID);
    theirs.filter(|id| id.len() <= LONGEST_ID && id.to_str().is_ok_and(|id| !id.is_empty())).cloned().unwrap_or_else(
        || {
            // Freshly seeded each time; unique is enough.
            let number = RandomState::new().build_hasher().finish();
            HeaderValue::from_str(&format!("{number:016x}")).unwrap_or(HeaderValue::from_static("0"))
        },
    )
}
