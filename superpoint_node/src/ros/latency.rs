//! How long frames take in the node.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The times of one frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// From the callback to the published message.
    pub(super) total: Duration,
    /// Of these, waiting for the detector to finish other frames.
    pub(super) waiting: Duration,
    /// Of these, the detector.
    pub(super) detector: Duration,
}

/// The times of the newest frames.
#[derive(Debug, Default)]
pub(super) struct Latency(Mutex<VecDeque<Times>>);

/// Percentiles in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Percentiles {
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
}

impl Latency {
    /// Enough for a 99th percentile, and half a minute of a fast camera.
    const FRAMES: usize = 1000;

    pub(super) fn add(&self, times: Times) {
        let mut frames = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if frames.len() == Self::FRAMES {
            frames.pop_front();
        }
        frames.push_back(times);
    }

    /// Percentiles of something about the newest frames; `None` before the first.
    pub(super) fn percentiles(&self, of: impl Fn(&Times) -> Duration) -> Option<Percentiles> {
        let mut durations: Vec<Duration> =
            self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(of).collect();
        durations.sort_unstable();
        let last = durations.len().checked_sub(1)?;
        let at = |percent: usize| (durations[(last * percent).div_ceil(100)]).as_secs_f64() * 1e3;
        Some(Percentiles { p50: at(50), p90: at(90), p99: at(99) })
    }
}

impl Times {
    /// What the node adds around the detector, waiting for it left out.
    pub(super) fn added(&self) -> Duration {
        self.total.saturating_sub(self.waiting).saturating_sub(self.detector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(total_ms: u64) -> Times {
        Times { total: Duration::from_millis(total_ms), waiting: Duration::ZERO, detector: Duration::ZERO }
    }

    #[test]
    fn percentiles_are_of_the_newest_frames() {
        let latency = Latency::default();
        assert_eq!(latency.percentiles(|times| times.total), None);
        latency.add(times(7));
        assert_eq!(latency.percentiles(|times| times.total), Some(Percentiles { p50: 7.0, p90: 7.0, p99: 7.0 }));
        for total in (0..=100).rev() {
            for _ in 0..10 {
                latency.add(times(total));
            }
        }
        // The oldest eleven are gone: the 7 and ten times 100.
        let Some(found) = latency.percentiles(|times| times.total) else { panic!("there are frames") };
        assert_eq!(found, Percentiles { p50: 50.0, p90: 90.0, p99: 99.0 });
    }

    #[test]
    fn what_the_node_adds_is_neither_waiting_nor_the_detector() {
        let ms = Duration::from_millis;
        let times = Times { total: ms(100), waiting: ms(30), detector: ms(68) };
        assert_eq!(times.added(), ms(2));
    }
}
