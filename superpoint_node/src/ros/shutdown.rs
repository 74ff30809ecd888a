//! SIGINT and SIGTERM: the process ends within a second, with status 0, whatever it is doing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Set once a signal has asked the process to end.
#[derive(Clone, Debug)]
pub(super) struct Shutdown(Arc<AtomicBool>);

impl Shutdown {
    /// An orderly end takes a few milliseconds, unless something outside hangs (a device, the middleware).
    const GRACE: Duration = Duration::from_millis(700);

    /// Starts listening for signals.
    pub(super) fn listen() -> std::io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let requested = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&requested);
        thread::Builder::new().name("signals".into()).spawn(move || {
            if signals.forever().next().is_some() {
                flag.store(true, Ordering::Release);
                thread::sleep(Self::GRACE);
                tracing::warn!("ending at once: something still runs {} ms after the signal", Self::GRACE.as_millis());
                signal_hook::low_level::exit(0); // at once, without any clean-up
            }
        })?;
        Ok(Self(requested))
    }

    /// Whether a signal has come.
    pub(super) fn requested(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
