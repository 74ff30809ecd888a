//! One detection: decode on the pool, wait in the queue, detect on the engine's thread, encode on the pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;
use tt_backend::{Params, Size};

use super::app::App;
use super::fields::{Query, read_predict_body};
use super::metrics::Stage;
use super::problem::Problem;
use crate::channel::Channel;
use crate::decode::Samples;
use crate::response;

/// A request that has arrived.
pub(super) enum Input {
    /// JSON with the picture in it.
    Json(Vec<u8>),
    /// A picture file.
    File(Vec<u8>, Query),
    /// The samples themselves.
    Plane(Vec<u8>, Query),
}

/// What the engine needs.
struct Prepared {
    samples: Samples,
    params: Params,
}

impl Input {
    /// Length of the body.
    fn bytes(&self) -> usize {
        let (Self::Json(body) | Self::File(body, _) | Self::Plane(body, _)) = self;
        body.len()
    }

    /// Reads what the request says, and decodes its picture.
    fn prepare(self, defaults: &Params, channel: Channel) -> Result<Prepared, Problem> {
        match self {
            Self::Json(body) => {
                let request = read_predict_body(&body, defaults)?;
                drop(body);
                Ok(Prepared { samples: Samples::decode(&request.image, channel)?, params: request.params })
            }
            Self::File(bytes, query) => {
                let params = query.fields.apply(defaults)?;
                Ok(Prepared { samples: Samples::decode(&bytes, channel)?, params })
            }
            Self::Plane(bytes, query) => {
                let size = query.size()?;
                let params = query.fields.apply(defaults)?;
                check_plane(bytes.len(), size)?;
                Ok(Prepared { samples: Samples::gray(bytes, size), params })
            }
        }
    }
}

/// More bytes than a plane needs are an error too: the sender and this server then disagree about the size.
fn check_plane(given: usize, size: Size) -> Result<(), Problem> {
    let needed = size.height * size.width;
    if given != needed {
        return Err(Problem::bad(format!(
            "the body has {given} bytes, but a plane of height {} and width {} has {needed}",
            size.height, size.width
        )));
    }
    Ok(())
}

/// Answers a request, or gives it up when its time is up.
pub(super) async fn answer(app: &Arc<App>, input: Input) -> Response {
    let deadline = app.limits().deadline;
    let detected = tokio::select! {
        detected = tokio::time::timeout(deadline, detect(app, input)) => detected,
        () = app.drained() => {
            return Problem::unavailable("the server is ending; the request was given up").into_response();
        }
    };
    match detected {
        Ok(Ok(response)) => response,
        Ok(Err(problem)) => {
            let mut response = problem.into_response();
            if response.status() == StatusCode::SERVICE_UNAVAILABLE && app.is_crowded() {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            response
        }
        Err(_) => {
            let seconds = deadline.as_secs_f64();
            Problem::new(
                StatusCode::GATEWAY_TIMEOUT,
                format!("no answer within {seconds} seconds; the request was given up"),
            )
            .into_response()
        }
    }
}

async fn detect(app: &Arc<App>, input: Input) -> Result<Response, Problem> {
    let arrived = Instant::now();
    // Before anything is done for it: a request that has to be refused must cost little.
    let place = app.place(input.bytes()).await?;
    let start = Instant::now();
    let on_pool = Arc::clone(app);
    let prepared = pool(move || input.prepare(&on_pool.options.params, on_pool.options.channel));
    let Prepared { samples, params } = prepared.await??;
    let decoded = Instant::now();

    let (sender, answer) = oneshot::channel();
    place.submit(move |detector| {
        let waited = decoded.elapsed();
        let found = samples.plane().and_then(|plane| detector.detect(&plane, &params));
        let _ = sender.send((found, params, waited));
    });
    let (found, params, waited) = answer.await.map_err(|_| Problem::internal())?;
    let found = found.map_err(|error| Problem::unavailable(format!("the device failed: {error}")))?;
    let timings = found.timings;

    let encoding = Instant::now();
    let body = pool(move || {
        let response = response::Response::new(&found, &params, decoded - start)
            .map_err(|error| Problem::bad(error.to_string()))?;
        response.to_json().map_err(|_| Problem::internal())
    })
    .await??;
    let body = app.answers.body(body, app.limits().patience, &app.metrics.unread)?;
    drop(place);

    let stages = [
        (Stage::Decode, decoded - start),
        (Stage::Queue, (start - arrived) + waited),
        (Stage::Resize, timings.resize),
        (Stage::Network, timings.network),
        (Stage::Keypoints, timings.keypoints),
        (Stage::Encode, encoding.elapsed()),
        (Stage::Total, arrived.elapsed()),
    ];
    stages.iter().for_each(|&(stage, duration)| app.metrics.stage(stage, duration));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Ok(value) = HeaderValue::from_str(&server_timing(&stages)) {
        headers.insert("server-timing", value);
    }
    Ok(response)
}

/// The stages as browsers and benches read them: <https://www.w3.org/TR/server-timing/>.
fn server_timing(stages: &[(Stage, Duration)]) -> String {
    let one =
        |&(stage, duration): &(Stage, Duration)| format!("{};dur={:.3}", stage.name(), duration.as_secs_f64() * 1e3);
    stages.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Runs work that takes long where it holds nobody up. Dropped, it is not begun, if it has not.
async fn pool<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    AbortOnDropHandle::new(tokio::task::spawn_blocking(work)).await.map_err(|error| {
        tracing::error!(%error, "work on the pool ended early");
        Problem::internal()
    })
}
