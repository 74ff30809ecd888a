//! Which path leads where, and the description of all of them.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use serde::Serialize;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::openapi::{InfoBuilder, OpenApi, OpenApiBuilder};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::app::{App, Readiness};
use super::body;
use super::fields::{Fields, PredictRequest, Query};
use super::observe::observe;
use super::predict::{self, Input};
use super::problem::{Detail, Problem, json};
use crate::decode::MAX_PIXELS;
use crate::response::{Defaults, ImageSize, Response as Prediction, ServingPath};

/// Name of the model in `/info` and `/v1/models`.
const MODEL: &str = "superpoint-p150";

/// The whole server.
pub(super) fn router(app: Arc<App>) -> Router {
    let (api, description) = OpenApiRouter::with_openapi(description())
        .routes(routes!(predict))
        .routes(routes!(predict_raw))
        .routes(routes!(predict_plane))
        .routes(routes!(health))
        .routes(routes!(info))
        .routes(routes!(models))
        .routes(routes!(metrics))
        .split_for_parts();
    let description = serde_json::to_string(&description).unwrap_or_default();
    api.route(
        "/openapi.json",
        get(move || async move { ([(header::CONTENT_TYPE, "application/json")], description.clone()) }),
    )
    .route("/docs", get(|| async { page(include_str!("docs.html")) }))
    .route("/", get(|| async { page(include_str!("page.html")) }))
    .fallback(not_found)
    .method_not_allowed_fallback(method_not_allowed)
    .layer(CatchPanicLayer::custom(|_| Problem::internal().into_response()))
    .layer(middleware::from_fn_with_state(Arc::clone(&app), observe))
    .with_state(app)
}

fn description() -> OpenApi {
    let info = InfoBuilder::new()
        .title("SuperPoint")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Keypoints, scores and descriptors of one picture. Errors are JSON with the field `detail`; 503 comes with \
             `Retry-After`.",
        ))
        .build();
    OpenApiBuilder::new().info(info).build()
}

/// An HTML page that may load nothing from anywhere else.
fn page(html: &'static str) -> Response {
    const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                          img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                          frame-ancestors 'none'";
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, html).into_response()
}

async fn not_found(State(app): State<Arc<App>>, uri: Uri, body: Body) -> Problem {
    body::discard(body, app.limits()).await;
    let path: String = uri.path().chars().take(100).collect();
    Problem::new(StatusCode::NOT_FOUND, format!("there is no {path}; /docs lists what there is"))
}

async fn method_not_allowed(State(app): State<Arc<App>>, method: Method, uri: Uri, body: Body) -> Problem {
    body::discard(body, app.limits()).await;
    let method = method.as_str();
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, format!("{} does not take {method:.20}; see /docs", uri.path()))
}

/// Keypoints of a picture in JSON
#[utoipa::path(post, path = "/predict", request_body = PredictRequest, responses(
    (status = 200, body = Prediction, description = "The keypoints"),
    (status = 400, body = Detail, description = "No such JSON, no valid base64, no readable picture, or a field that is unknown, of the wrong type or out of range"),
    (status = 408, body = Detail, description = "The body took too long"),
    (status = 413, body = Detail, description = "Too many bytes or too many pixels"),
    (status = 415, body = Detail, description = "The body is compressed, or a form"),
    (status = 503, body = Detail, description = "Starting, or the queue is full"),
    (status = 504, body = Detail, description = "No answer in time"),
))]
async fn predict(State(app): State<Arc<App>>, RawQuery(query): RawQuery, headers: HeaderMap, body: Body) -> Response {
    receive(app, headers, body, move |bytes| {
        if query.is_some_and(|query| !query.is_empty()) {
            return Err(Problem::bad("/predict takes its fields from the JSON body, not from the query"));
        }
        Ok(Input::Json(bytes))
    })
    .await
}

/// Keypoints of a picture file
#[utoipa::path(post, path = "/predict_raw", params(Fields),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "A PNG or JPEG file"),
    responses(
    (status = 200, body = Prediction, description = "The keypoints"),
    (status = 400, body = Detail, description = "No readable picture, or a field that is unknown, of the wrong type or out of range"),
    (status = 408, body = Detail, description = "The body took too long"),
    (status = 413, body = Detail, description = "Too many bytes or too many pixels"),
    (status = 415, body = Detail, description = "The body is compressed, or a form"),
    (status = 503, body = Detail, description = "Starting, or the queue is full"),
    (status = 504, body = Detail, description = "No answer in time"),
))]
async fn predict_raw(
    State(app): State<Arc<App>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let query = Query::read(query.as_deref().unwrap_or_default(), false);
    receive(app, headers, body, move |bytes| Ok(Input::File(bytes, query?))).await
}

/// The size of a plane.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)] // For the description; `Query` reads it.
struct PlaneSize {
    /// Rows.
    #[param(minimum = 1, maximum = 65535)]
    height: u32,
    /// Columns.
    #[param(minimum = 1, maximum = 65535)]
    width: u32,
}

/// Keypoints of one channel's samples
#[utoipa::path(post, path = "/predict_plane", params(PlaneSize, Fields),
    request_body(content = Vec<u8>, content_type = "application/octet-stream",
        description = "height * width bytes, row by row: the picture's first channel"),
    responses(
    (status = 200, body = Prediction, description = "The keypoints"),
    (status = 400, body = Detail, description = "Not height * width bytes, or a field that is missing, unknown, of the wrong type or out of range"),
    (status = 408, body = Detail, description = "The body took too long"),
    (status = 413, body = Detail, description = "Too many bytes"),
    (status = 415, body = Detail, description = "The body is compressed, or a form"),
    (status = 503, body = Detail, description = "Starting, or the queue is full"),
    (status = 504, body = Detail, description = "No answer in time"),
))]
async fn predict_plane(
    State(app): State<Arc<App>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let query = Query::read(query.as_deref().unwrap_or_default(), true);
    receive(app, headers, body, move |bytes| Ok(Input::Plane(bytes, query?))).await
}

/// Reads the body first, whatever is wrong with the rest: a client that is still sending would not read an answer.
async fn receive(
    app: Arc<App>,
    headers: HeaderMap,
    body: Body,
    input: impl FnOnce(Vec<u8>) -> Result<Input, Problem>,
) -> Response {
    let received = match body::read(&headers, body, &app).await {
        Ok(received) => received,
        Err(problem) => return problem.into_response(),
    };
    let (bytes, _share) = received.into_parts();
    if let Err(problem) = body::check_form(&headers) {
        return problem.into_response();
    }
    match input(bytes) {
        Ok(input) => predict::answer(&app, input).await,
        Err(problem) => problem.into_response(),
    }
}

/// The server's state.
#[derive(Serialize, ToSchema)]
struct Health {
    /// `ok`, `starting` or `failed`.
    status: &'static str,
    /// What the device said, when it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// `p150` or `cpu`, once the detector is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    backend: Option<&'static str>,
    version: &'static str,
}

/// Whether the server can detect
#[utoipa::path(get, path = "/health", responses(
    (status = 200, body = Health, description = "Ready"),
    (status = 503, body = Health, description = "Starting, or the device failed"),
))]
async fn health(State(app): State<Arc<App>>) -> Response {
    let readiness = app.readiness();
    let detail = match &readiness {
        Readiness::Ready => None,
        Readiness::Starting => Some(Problem::starting().detail),
        Readiness::Failed(reason) => Some(reason.clone()),
    };
    let backend = app.detection_if_ready().map(|detection| detection.watch.model().backend.name());
    let health = Health { status: readiness.name(), detail, backend, version: env!("CARGO_PKG_VERSION") };
    if readiness == Readiness::Ready {
        return json(StatusCode::OK, &health);
    }
    let mut response = json(StatusCode::SERVICE_UNAVAILABLE, &health);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// What serves, and what it takes.
#[derive(Serialize, ToSchema)]
struct Info {
    model: &'static str,
    version: &'static str,
    /// `p150` or `cpu`.
    backend: &'static str,
    device: Device,
    weights: WeightsInfo,
    /// Size of the network frame.
    image_size: ImageSize,
    /// Image sizes that were prepared at the start: they need no preparation at their first request.
    prepared_image_sizes: Vec<ImageSize>,
    serving_path: ServingPath,
    /// What a request that does not say otherwise is detected with.
    defaults: Defaults,
    limits: LimitsInfo,
}

#[derive(Serialize, ToSchema)]
struct Device {
    /// `ok`, `starting` or `failed`.
    state: &'static str,
    /// What runs where.
    description: String,
    /// Why this backend, where `auto` chose it or a card failed.
    reason: Option<String>,
}

#[derive(Serialize, ToSchema)]
struct WeightsInfo {
    /// Repository or name of the weights.
    repo: String,
    revision: Option<String>,
    /// Of the whole file, hexadecimal.
    sha256: String,
}

#[derive(Serialize, ToSchema)]
struct LimitsInfo {
    body_bytes: usize,
    pixels: u64,
    /// Requests that wait or are worked on.
    queue: usize,
    connections: usize,
    deadline_seconds: f64,
    receive_seconds: f64,
}

/// The model, its weights, the device and the limits
#[utoipa::path(get, path = "/info", responses(
    (status = 200, body = Info, description = "What serves"),
    (status = 503, body = Detail, description = "Starting"),
))]
async fn info(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let model = app.detection()?.watch.model();
    let limits = app.limits();
    let weights = &model.weights;
    Ok(json(
        StatusCode::OK,
        &Info {
            model: MODEL,
            version: env!("CARGO_PKG_VERSION"),
            backend: model.backend.name(),
            device: Device {
                state: app.readiness().name(),
                description: model.description.clone(),
                reason: model.reason.clone(),
            },
            weights: WeightsInfo {
                repo: weights.name.clone(),
                revision: weights.revision.clone(),
                sha256: weights.sha256.clone(),
            },
            image_size: model.network.into(),
            prepared_image_sizes: model.prepared.iter().map(|&size| size.into()).collect(),
            serving_path: model.serving_path.into(),
            defaults: Defaults::new(&app.options.params, app.options.channel),
            limits: LimitsInfo {
                body_bytes: limits.body_bytes,
                pixels: MAX_PIXELS,
                queue: limits.queue,
                connections: limits.connections,
                deadline_seconds: limits.deadline.as_secs_f64(),
                receive_seconds: limits.patience.as_secs_f64(),
            },
        },
    ))
}

#[derive(Serialize, ToSchema)]
struct Models {
    /// `list`.
    object: &'static str,
    data: Vec<ModelEntry>,
}

#[derive(Serialize, ToSchema)]
struct ModelEntry {
    id: &'static str,
    /// `model`.
    object: &'static str,
    created: u64,
    owned_by: &'static str,
}

/// The model in the shape of OpenAI's list; this is no chat server
#[utoipa::path(get, path = "/v1/models", responses((status = 200, body = Models, description = "A list of one")))]
async fn models() -> Response {
    let entry = ModelEntry { id: MODEL, object: "model", created: 0, owned_by: "superpoint_p150" };
    json(StatusCode::OK, &Models { object: "list", data: vec![entry] })
}

/// Counters and latencies for Prometheus
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, description = "Prometheus text, or OpenMetrics where `Accept` names it", content(
        (String = "text/plain"), (String = "application/openmetrics-text"),
    )),
))]
async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (kind, text) = if accepted.contains("application/openmetrics-text") {
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", app.metrics.openmetrics(&app))
    } else {
        ("text/plain; version=0.0.4; charset=utf-8", app.metrics.prometheus(&app))
    };
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}
