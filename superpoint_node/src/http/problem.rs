//! Errors as JSON: `{"detail": "..."}` says what is wrong and with which value.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::decode::DecodeError;
use crate::engine::Full;

/// Why a request is not answered.
#[derive(Clone, Debug)]
pub struct Problem {
    pub(super) status: StatusCode,
    pub(super) detail: String,
}

/// The body of every error.
#[derive(Serialize, ToSchema)]
pub(super) struct Detail {
    /// What is wrong, with which value, and what is expected.
    detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }

    /// The request says something that makes no sense.
    pub(super) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn too_large(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    /// Not now; perhaps in a moment.
    pub(super) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    pub(super) fn starting() -> Self {
        Self::unavailable("the server is starting; its detector is not ready yet")
    }

    /// A defect of the program.
    pub(super) fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the server failed at this request, which is a defect in it; its log says more",
        )
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.status.as_u16()
    }

    /// What is wrong, in a sentence.
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

impl From<Full> for Problem {
    fn from(full: Full) -> Self {
        Self::unavailable(format!("{full}; try again in a moment"))
    }
}

impl From<DecodeError> for Problem {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::TooLarge { .. } => Self::too_large(error.to_string()),
            _ => Self::bad(error.to_string()),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let unavailable = self.status == StatusCode::SERVICE_UNAVAILABLE;
        let mut response = json(self.status, &Detail { detail: self.detail });
        if unavailable {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// A JSON answer.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    // Types of this crate, whose maps have strings as keys: they always become JSON.
    let body = serde_json::to_vec(value).unwrap_or_default();
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}
