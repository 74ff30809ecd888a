//! A request's body, whole, within its limits.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt as _;

use super::Limits;
use super::problem::Problem;

/// A body that is refused is still taken off the line, up to so many times the limit: many clients read the answer
/// only when they have sent everything, and would see a broken connection instead.
const DISCARDED_LIMITS: usize = 4;

/// Memory that is set aside on the client's word alone.
const TRUSTED_BYTES: u64 = 4 << 20;

/// Reads the body.
///
/// # Errors
///
/// 413 if it is too large, 408 if it takes too long, 400 if it breaks off.
pub(super) async fn read(headers: &HeaderMap, body: Body, limits: &Limits) -> Result<Vec<u8>, Problem> {
    let seconds = limits.patience.as_secs_f64();
    match tokio::time::timeout(limits.patience, read_all(headers, body, limits)).await {
        Ok(result) => result,
        Err(_) => {
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, format!("the body did not arrive within {seconds} seconds")))
        }
    }
}

async fn read_all(headers: &HeaderMap, mut body: Body, limits: &Limits) -> Result<Vec<u8>, Problem> {
    let limit = limits.body_bytes;
    let declared = body.size_hint().lower();
    let mut bytes = Vec::new();
    if declared <= limit as u64 {
        bytes.reserve(declared.min(TRUSTED_BYTES) as usize);
        loop {
            match body.frame().await {
                None => return Ok(bytes),
                Some(Err(error)) => return Err(Problem::bad(format!("the body broke off: {error}"))),
                Some(Ok(frame)) => {
                    let Some(data) = frame.data_ref() else { continue };
                    if bytes.len() + data.len() > limit {
                        break;
                    }
                    bytes.extend_from_slice(data);
                }
            }
        }
    }
    drop(bytes);
    // Whoever asks first whether to send the body is told no before sending it.
    if !headers.contains_key(header::EXPECT) {
        discard(body, limit.saturating_mul(DISCARDED_LIMITS), limits.patience / 2).await;
    }
    let declared = if declared > 0 { format!(" ({declared} bytes are announced)") } else { String::new() };
    Err(Problem::too_large(format!("the body is larger than {limit} bytes, the most that is accepted{declared}")))
}

async fn discard(mut body: Body, mut left: usize, patience: Duration) {
    let all = async {
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            let Some(rest) = left.checked_sub(length) else { break };
            left = rest;
        }
    };
    let _ = tokio::time::timeout(patience, all).await;
}
