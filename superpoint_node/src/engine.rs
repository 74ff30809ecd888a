//! One thread that owns the detector, and the places where work for it waits.
//!
//! A card and a pool of CPU threads are both single resources, so all work goes through one thread. Whoever
//! has images takes a [`NewestSlot`]: it holds one job, the newest, because a robot wants to know where it is
//! now. The slots are served in turn, so that a fast camera cannot starve a slow one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};

use tt_backend::{Detector, Error, Model, Options};

type Job = Box<dyn FnOnce(&mut Detector) + Send>;

/// The thread that owns the detector. Dropping the engine ends the thread after the job that is running;
/// it is not waited for, and jobs that have not started are given up.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    model: Model,
}

impl Engine {
    /// Opens a detector on a thread of its own, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// Those of [`Detector::open`], and the operating system's refusal to start a thread.
    pub fn start(options: Options) -> Result<Self, Error> {
        let shared = Arc::new(Shared::default());
        let (opened_sender, opened) = mpsc::sync_channel(1);
        let on_thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("detector".to_owned())
            .spawn(move || {
                // The detector is opened here, and never leaves: a device's context may belong to its thread.
                match Detector::open(&options) {
                    Ok(mut detector) => {
                        let _ = opened_sender.send(Ok(detector.model().clone()));
                        on_thread.serve(&mut detector);
                    }
                    Err(error) => {
                        let _ = opened_sender.send(Err(error));
                    }
                }
            })
            .map_err(|reason| Error::System { action: "starting the detector's thread", reason })?;
        let model = opened.recv().map_err(|_| Error::System {
            action: "opening the detector",
            reason: std::io::Error::other("its thread panicked; the panic is above"),
        })??;
        Ok(Self { shared, model })
    }

    /// Which backend and which weights the detector has.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// A new place for one job, served in turn with all others.
    pub fn newest_slot(&self) -> NewestSlot {
        let mut state = self.shared.lock();
        state.slots.push(None);
        NewestSlot { shared: Arc::clone(&self.shared), index: state.slots.len() - 1, replaced: AtomicU64::new(0) }
    }

    /// Number of jobs that panicked: a defect of the program, survived and counted.
    pub fn panics(&self) -> u64 {
        self.shared.panics.load(Ordering::Relaxed)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.wake.notify_one();
    }
}

/// A place for one job: the newest. See [`Engine::newest_slot`].
#[derive(Debug)]
pub struct NewestSlot {
    shared: Arc<Shared>,
    index: usize,
    replaced: AtomicU64,
}

impl NewestSlot {
    /// Puts a job into the slot. If an older one is still waiting there, that one is given up and counted.
    /// Never waits for a job to run.
    pub fn offer(&self, job: impl FnOnce(&mut Detector) + Send + 'static) {
        let older = self.shared.lock().slots[self.index].replace(Box::new(job));
        if older.is_some() {
            self.replaced.fetch_add(1, Ordering::Relaxed);
        } else {
            self.shared.wake.notify_one();
        }
        // `older` and the image in it are freed here, outside the lock.
    }

    /// Number of jobs that were given up for a newer one.
    pub fn replaced(&self) -> u64 {
        self.replaced.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    panics: AtomicU64,
}

#[derive(Default)]
struct State {
    slots: Vec<Option<Job>>,
    /// The slot that is looked at first the next time.
    next: usize,
    stopping: bool,
}

impl State {
    /// The next job, slots in turn.
    fn take(&mut self) -> Option<Job> {
        let count = self.slots.len();
        for step in 0..count {
            let index = (self.next + step) % count;
            if let Some(job) = self.slots[index].take() {
                self.next = index + 1;
                return Some(job);
            }
        }
        None
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under this lock, and every state of the queue is a valid one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs jobs until the engine is dropped.
    fn serve(&self, detector: &mut Detector) {
        let mut state = self.lock();
        while !state.stopping {
            let Some(job) = state.take() else {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            // The detector's buffers are all filled anew by the next detection.
            if catch_unwind(AssertUnwindSafe(|| job(detector))).is_err() {
                self.panics.fetch_add(1, Ordering::Relaxed);
                tracing::error!("a detection panicked; its image is lost, the next one is taken");
            }
            state = self.lock();
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use tt_backend::{BackendChoice, Size};

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn engine() -> Engine {
        Engine::start(Options {
            backend: BackendChoice::Cpu,
            weights: Some("bundled".into()),
            threads: 1,
            network: Size::new(16, 16),
        })
        .unwrap()
    }

    /// A job that says that it has started, then waits until it is told to end.
    fn block(slot: &NewestSlot) -> Sender<()> {
        let (started_sender, started) = channel();
        let (end, ending) = channel();
        slot.offer(move |_| {
            started_sender.send(()).unwrap();
            ending.recv_timeout(SOON).unwrap();
        });
        started.recv_timeout(SOON).unwrap();
        end
    }

    fn collect(received: &Receiver<&'static str>, count: usize) -> Vec<&'static str> {
        (0..count).map(|_| received.recv_timeout(SOON).unwrap()).collect()
    }

    #[test]
    fn only_the_newest_job_runs_and_the_others_are_counted() {
        let engine = engine();
        let slot = engine.newest_slot();
        let end = block(&slot);
        let (sender, received) = channel();
        for name in ["first", "second", "third"] {
            let sender = sender.clone();
            slot.offer(move |_| sender.send(name).unwrap());
        }
        assert_eq!(slot.replaced(), 2);
        end.send(()).unwrap();
        assert_eq!(collect(&received, 1), ["third"]);
        drop(sender);
        assert!(received.recv_timeout(SOON).is_err(), "nothing else ran");
    }

    #[test]
    fn slots_are_served_in_turn() {
        let engine = engine();
        let (fast, slow) = (engine.newest_slot(), engine.newest_slot());
        let (sender, received) = channel();
        let end = block(&fast);
        // While the fast one's job runs, it already has the next.
        for (slot, name) in [(&fast, "fast"), (&slow, "slow")] {
            let sender = sender.clone();
            slot.offer(move |_| sender.send(name).unwrap());
        }
        end.send(()).unwrap();
        assert_eq!(collect(&received, 2), ["slow", "fast"]);
    }

    #[test]
    fn a_panic_is_survived_and_counted() {
        let engine = engine();
        let slot = engine.newest_slot();
        slot.offer(|_| panic!("on purpose"));
        let (sender, received) = channel();
        let end = block(&engine.newest_slot());
        slot.offer(move |_| sender.send("after").unwrap());
        end.send(()).unwrap();
        assert_eq!(collect(&received, 1), ["after"]);
        assert_eq!(engine.panics(), 1);
    }

    #[test]
    fn bad_options_are_told_to_the_caller() {
        let error = Engine::start(Options { backend: BackendChoice::P150, ..Options::default() });
        assert!(error.unwrap_err().to_string().contains("p150"));
    }
}
