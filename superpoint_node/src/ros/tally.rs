//! What became of the frames: every one received is accounted for.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a frame gave no message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Rejection {
    /// Bytes that are no image message.
    Malformed,
    /// An encoding that is not read.
    Encoding(String),
    /// Sizes that contradict each other.
    Layout,
    /// The detector failed.
    Detection,
    /// The message could not be published.
    Publishing,
}

/// Counters of frames since the start.
#[derive(Debug, Default)]
pub(super) struct Tally {
    received: AtomicU64,
    published: AtomicU64,
    rejected: AtomicU64,
    reported: Mutex<HashSet<Rejection>>,
}

impl Tally {
    /// More kinds than these are counted but not logged: encodings are texts from outside, and a log must not grow
    /// with them.
    const MAX_REPORTED: usize = 64;

    pub(super) fn received(&self) {
        self.received.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn published(&self) {
        self.published.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a rejected frame; true when its kind is met for the first time and should be logged.
    pub(super) fn rejected(&self, kind: Rejection) -> bool {
        self.rejected.fetch_add(1, Ordering::Relaxed);
        let mut reported = self.reported.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        reported.len() < Self::MAX_REPORTED && reported.insert(kind)
    }

    /// All counters in a line. The slot knows how many frames gave way to newer ones; what is then left over was
    /// waiting, or being worked on.
    pub(super) fn summary(&self, replaced: u64) -> String {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (received, published, rejected) = (read(&self.received), read(&self.published), read(&self.rejected));
        let unfinished = received.saturating_sub(published + replaced + rejected);
        format!(
            "{received} received, {published} published, {replaced} replaced by newer ones, {rejected} rejected, \
             {unfinished} unfinished"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_reported_once_and_counted_always() {
        let tally = Tally::default();
        assert!(tally.rejected(Rejection::Encoding("32FC1".into())));
        assert!(!tally.rejected(Rejection::Encoding("32FC1".into())));
        assert!(tally.rejected(Rejection::Encoding("64FC1".into())));
        assert!(tally.rejected(Rejection::Malformed));
        assert!(!tally.rejected(Rejection::Malformed));
        for _ in 0..9 {
            tally.received();
        }
        tally.published();
        let expected = "9 received, 1 published, 2 replaced by newer ones, 5 rejected, 1 unfinished";
        assert_eq!(tally.summary(2), expected);
    }

    #[test]
    fn invented_encodings_do_not_grow_the_log() {
        let tally = Tally::default();
        let logged = (0..1000).filter(|n| tally.rejected(Rejection::Encoding(n.to_string()))).count();
        assert_eq!(logged, Tally::MAX_REPORTED);
    }
}
