//! A request's body, whole, within its limits, and all bodies together within theirs.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::BodyExt as _;

use super::Limits;
use super::app::App;
use super::problem::Problem;

/// A body that is refused is still taken off the line, up to so many times the limit: many clients read the answer
/// only when they have sent everything, and would see a broken connection instead.
const DISCARDED_LIMITS: usize = 4;

/// Memory that is set aside on the client's word alone.
const TRUSTED_BYTES: u64 = 4 << 20;

/// All bodies together may take so many times the limit of one: many clients at once must not take all memory.
const MOST_BODIES: usize = 16;

/// Bytes of all bodies that are being received or worked on.
#[derive(Debug, Default)]
pub(super) struct Bodies(AtomicUsize);

/// The part of one body, until it is dropped.
struct Share<'a> {
    bodies: &'a Bodies,
    bytes: usize,
}

impl Share<'_> {
    /// Takes more, unless all together would have more than `limit`.
    fn grow(&mut self, bytes: usize, limit: usize) -> Result<(), Problem> {
        let fits = |all: usize| all.checked_add(bytes).filter(|&all| all <= limit);
        self.bodies.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map_err(|_| {
            Problem::unavailable(format!("all requests together have more than {limit} bytes; try again in a moment"))
        })?;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.bodies.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A body, and its part of the memory for all of them.
pub(super) struct Received<'a> {
    bytes: Vec<u8>,
    share: Share<'a>,
}

impl<'a> Received<'a> {
    /// The bytes, and what is to be kept until they are not needed any more.
    pub(super) fn into_parts(self) -> (Vec<u8>, impl Sized + use<'a>) {
        (self.bytes, self.share)
    }
}

/// Reads the body.
///
/// # Errors
///
/// 413 if it is too large, 503 if all bodies together are, 408 if it takes too long, 400 if it breaks off.
pub(super) async fn read<'a>(headers: &HeaderMap, body: Body, app: &'a App) -> Result<Received<'a>, Problem> {
    let patience = app.patience();
    let seconds = patience.as_secs_f64();
    match tokio::time::timeout(patience, read_all(headers, body, app.limits(), &app.bodies)).await {
        Ok(result) => result,
        Err(_) => {
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, format!("the body did not arrive within {seconds} seconds")))
        }
    }
}

async fn read_all<'a>(
    headers: &HeaderMap,
    mut body: Body,
    limits: &Limits,
    bodies: &'a Bodies,
) -> Result<Received<'a>, Problem> {
    let limit = limits.body_bytes;
    let declared = body.size_hint().lower();
    let mut bytes = Vec::new();
    let mut share = Share { bodies, bytes: 0 };
    if declared <= limit as u64 {
        bytes.reserve(declared.min(TRUSTED_BYTES) as usize);
        loop {
            match body.frame().await {
                None => return Ok(Received { bytes, share }),
                Some(Err(error)) => return Err(Problem::bad(format!("the body broke off: {error}"))),
                Some(Ok(frame)) => {
                    let Some(data) = frame.data_ref() else { continue };
                    if bytes.len() + data.len() > limit {
                        break;
                    }
                    share.grow(data.len(), limit.saturating_mul(MOST_BODIES))?;
                    bytes.extend_from_slice(data);
                }
            }
        }
    }
    drop((bytes, share));
    // Whoever asks first whether to send the body is told no before sending it.
    if !headers.contains_key(header::EXPECT) {
        discard(body, limits).await;
    }
    let declared = if declared > 0 { format!(" ({declared} bytes are announced)") } else { String::new() };
    Err(Problem::too_large(format!("the body is larger than {limit} bytes, the most that is accepted{declared}")))
}

/// Refuses bodies that have to be unpacked first: what is in them would be taken for a damaged picture.
pub(super) fn check_form(headers: &HeaderMap) -> Result<(), Problem> {
    let unsupported = |detail: String| Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    let plain = |encoding: &&HeaderValue| {
        encoding.to_str().is_ok_and(|name| name.trim().is_empty() || name.trim().eq_ignore_ascii_case("identity"))
    };
    if let Some(encoding) = headers.get_all(header::CONTENT_ENCODING).iter().find(|encoding| !plain(encoding)) {
        let encoding = String::from_utf8_lossy(encoding.as_bytes());
        return unsupported(format!(
            "the body is sent with Content-Encoding {encoding:.40?}; send it as it is, without"
        ));
    }
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default().trim();
    if media_type.get(..10).is_some_and(|start| start.eq_ignore_ascii_case("multipart/")) {
        return unsupported(
            "the body is a form (multipart); send the JSON, or the bytes of the file or plane, as the body itself"
                .to_owned(),
        );
    }
    Ok(())
}

/// Takes a body off the line that nobody wants. Left there, it would end the connection, and with it the client's next
/// request.
pub(super) async fn discard(mut body: Body, limits: &Limits) {
    let mut left = limits.body_bytes.saturating_mul(DISCARDED_LIMITS);
    let all = async {
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            let Some(rest) = left.checked_sub(length) else { break };
            left = rest;
        }
    };
    let _ = tokio::time::timeout(limits.patience / 2, all).await;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn all_bodies_together_have_a_limit() {
        let bodies = Bodies::default();
        let mut first = Share { bodies: &bodies, bytes: 0 };
        let mut second = Share { bodies: &bodies, bytes: 0 };
        first.grow(70, 100).unwrap();
        assert_eq!(second.grow(31, 100).unwrap_err().status(), 503);
        second.grow(30, 100).unwrap();
        drop(first);
        second.grow(70, 100).unwrap();
        drop(second);
        assert_eq!(bodies.0.load(Ordering::Relaxed), 0);
    }
}
