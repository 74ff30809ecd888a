//! What became of the frames: every one received is accounted for.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Why a frame was refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Rejection {
    /// Bytes that are no image message.
    Malformed,
    /// An encoding that is not read.
    Encoding(String),
    /// Sizes that contradict each other.
    Layout,
    /// A compressed image that cannot be decoded.
    Undecodable,
    /// A compressed image of more pixels than are decoded.
    TooLarge,
    /// The detector failed.
    Detection,
    /// The message could not be published.
    Publishing,
}

/// Why a frame was passed over: nothing is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// The node is switched off.
    Disabled,
    /// `lazy`, and nobody subscribes.
    Unwatched,
    /// `max_rate_hz`.
    TooFast,
}

/// Counters of a camera's frames since the start.
#[derive(Debug, Default)]
pub(super) struct Tally {
    received: AtomicU64,
    published: AtomicU64,
    rejected: AtomicU64,
    passed: [AtomicU64; 3],
    reported: Mutex<HashSet<Rejection>>,
}

/// The counters at one moment. Received is the sum of all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) received: u64,
    pub(super) published: u64,
    /// Gave way to a newer frame.
    pub(super) replaced: u64,
    pub(super) rejected: u64,
    pub(super) disabled: u64,
    pub(super) unwatched: u64,
    pub(super) too_fast: u64,
    /// Waiting, or being worked on.
    pub(super) unfinished: u64,
}

impl Tally {
    /// Once so many kinds were logged, further encodings are only counted: they are texts from outside, and a log must
    /// not grow with them.
    const MAX_REPORTED: usize = 64;

    pub(super) fn received(&self) {
        self.received.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn published(&self) {
        self.published.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn passed(&self, why: Pass) {
        self.passed[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a rejected frame; true when its kind is met for the first time and should be logged.
    pub(super) fn rejected(&self, kind: Rejection) -> bool {
        self.rejected.fetch_add(1, Ordering::Relaxed);
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let is_bounded = !matches!(kind, Rejection::Encoding(_)) || reported.len() < Self::MAX_REPORTED;
        is_bounded && reported.insert(kind)
    }

    /// The counters now. The slot knows how many frames gave way to newer ones.
    pub(super) fn counts(&self, replaced: u64) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let passed = |why: Pass| read(&self.passed[why as usize]);
        let mut counts = Counts {
            // Read last: a frame that ends meanwhile must not make the others exceed it.
            received: 0,
            published: read(&self.published),
            replaced,
            rejected: read(&self.rejected),
            disabled: passed(Pass::Disabled),
            unwatched: passed(Pass::Unwatched),
            too_fast: passed(Pass::TooFast),
            unfinished: 0,
        };
        counts.received = read(&self.received);
        counts.unfinished = counts.received.saturating_sub(counts.finished());
        counts
    }
}

impl Counts {
    fn finished(&self) -> u64 {
        self.published + self.replaced + self.rejected + self.disabled + self.unwatched + self.too_fast
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} received, {} published, {} replaced by newer ones, {} rejected, {} disabled, {} unwatched, {} \
             too_fast, {} unfinished",
            self.received,
            self.published,
            self.replaced,
            self.rejected,
            self.disabled,
            self.unwatched,
            self.too_fast,
            self.unfinished
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
        for _ in 0..15 {
            tally.received();
        }
        tally.published();
        for (why, count) in [(Pass::Disabled, 1), (Pass::Unwatched, 2), (Pass::TooFast, 3)] {
            for _ in 0..count {
                tally.passed(why);
            }
        }
        let expected = "15 received, 1 published, 2 replaced by newer ones, 5 rejected, 1 disabled, 2 unwatched, 3 \
                        too_fast, 1 unfinished";
        assert_eq!(tally.counts(2).to_string(), expected);
    }

    #[test]
    fn invented_encodings_do_not_grow_the_log() {
        let tally = Tally::default();
        let logged = (0..1000).filter(|n| tally.rejected(Rejection::Encoding(n.to_string()))).count();
        assert_eq!(logged, Tally::MAX_REPORTED);
        assert!(tally.rejected(Rejection::Layout), "nor do they hide anything else");
    }
}
