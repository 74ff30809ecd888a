//! An answer on its way to the client, and all answers together within their limit.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::problem::Problem;

/// All answers that are not sent yet have at most so many bytes; the largest that there is has 201 MiB.
const MOST_BYTES: usize = 512 << 20;

/// What the connection is given at a time: the rest is waited with until it has sent that.
const PIECE_BYTES: usize = 256 << 10;

/// A client that takes fewer, after its patience, is left: a few slow ones would keep the others from their answers.
const LEAST_BYTES_PER_SECOND: usize = 256 << 10;

/// The memory for answers, in KiB.
#[derive(Debug)]
pub(super) struct Answers(Arc<Semaphore>);

impl Default for Answers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST_BYTES >> 10)))
    }
}

impl Answers {
    /// The answer as a body. `left` counts those that were not sent whole because the client was too slow.
    ///
    /// # Errors
    ///
    /// 503 if there is no memory for it beside those that others have not read yet.
    pub(super) fn body(&self, bytes: Vec<u8>, patience: Duration, left: &Counter) -> Result<Body, Problem> {
        let kibibytes = u32::try_from(bytes.len().div_ceil(1 << 10)).map_err(|_| Problem::internal())?;
        let share = Arc::clone(&self.0).try_acquire_many_owned(kibibytes).map_err(|_| {
            Problem::unavailable(format!(
                "there is no memory for this answer of {} bytes until other clients have read theirs; try again in a \
                 moment, or ask for fewer keypoints",
                bytes.len()
            ))
        })?;
        let until = Instant::now() + patience + Duration::from_secs((bytes.len() / LEAST_BYTES_PER_SECOND) as u64);
        Ok(Body::new(Answer { bytes, sent: 0, until, left: left.clone(), _share: share }))
    }
}

/// What is left of an answer.
struct Answer {
    bytes: Vec<u8>,
    sent: usize,
    /// When the client must have taken it.
    until: Instant,
    left: Counter,
    _share: OwnedSemaphorePermit,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = TooSlow;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, TooSlow>>> {
        let rest = &self.bytes[self.sent..];
        if rest.is_empty() {
            return Poll::Ready(None);
        }
        if Instant::now() > self.until {
            self.left.inc();
            return Poll::Ready(Some(Err(TooSlow)));
        }
        // Copied, so that this answer's memory is free when its last piece is taken.
        let piece = Bytes::copy_from_slice(&rest[..rest.len().min(PIECE_BYTES)]);
        self.sent += piece.len();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.sent == self.bytes.len()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.bytes.len() - self.sent) as u64)
    }
}

/// Why an answer ends early.
#[derive(Debug)]
struct TooSlow;

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the client reads its answer too slowly")
    }
}

impl std::error::Error for TooSlow {}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn status(answer: Result<Body, Problem>) -> u16 {
        answer.expect_err("no memory").status.as_u16()
    }

    #[tokio::test]
    async fn answers_that_nobody_reads_have_a_bound() {
        let answers = Answers::default();
        let of = |bytes: usize| answers.body(vec![7; bytes], Duration::from_secs(9), &Counter::default());
        let first = of(300 << 20).expect("there is memory");
        assert_eq!(status(of(300 << 20)), 503);
        let small = of(700 << 10).expect("there is memory for a small one");
        drop(first);
        let second = of(300 << 20).expect("the memory came back");
        drop(second);
        assert_eq!(small.size_hint().exact(), Some(700 << 10));
        assert_eq!(small.collect().await.expect("all of it").to_bytes(), vec![7; 700 << 10]);
        assert_eq!(answers.0.available_permits(), MOST_BYTES >> 10);
    }

    #[tokio::test]
    async fn a_client_that_reads_too_slowly_is_left() {
        tokio::time::pause();
        let left = Counter::default();
        let mut body = Answers::default().body(vec![7; 2 << 20], Duration::from_secs(9), &left).expect("memory");
        for wait in [0, 8, 8] {
            tokio::time::advance(Duration::from_secs(wait)).await;
            assert!(body.frame().await.expect("a piece").is_ok(), "after {wait} s");
        }
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(body.frame().await.expect("an end").is_err());
        assert_eq!(left.get(), 1);
    }
}
