//! What became of the frames: every one received is accounted for.

use std::collections::HashSet;
use std::fmt;
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
    replaced: AtomicU64,
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

    /// Counts frames that a newer one took the place of.
    pub(super) fn replaced(&self, frames: u64) {
        self.replaced.fetch_add(frames, Ordering::Relaxed);
    }

    /// Counts a rejected frame; true when its kind is met for the first time and should be logged.
    pub(super) fn rejected(&self, kind: Rejection) -> bool {
        self.rejected.fetch_add(1, Ordering::Relaxed);
        let mut reported = self.reported.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        reported.len() < Self::MAX_REPORTED && reported.insert(kind)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        write!(
            f,
            "{} received, {} published, {} replaced by newer ones, {} rejected",
            read(&self.received),
            read(&self.published),
            read(&self.replaced),
            read(&self.rejected)
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
        assert!(tally.to_string().ends_with("5 rejected"), "{tally}");
    }

    #[test]
    fn invented_encodings_do_not_grow_the_log() {
        let tally = Tally::default();
        let logged = (0..1000).filter(|n| tally.rejected(Rejection::Encoding(n.to_string()))).count();
        assert_eq!(logged, Tally::MAX_REPORTED);
    }
}
