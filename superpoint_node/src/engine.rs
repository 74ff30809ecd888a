//! One thread that owns the detector, and the places where work for it waits.
//!
//! A card and a pool of CPU threads are both single resources, so all work goes through one thread. A camera
//! takes a [`NewestSlot`]: it holds one job, the newest, because a robot wants to know where it is now. Clients
//! that each want an answer share a [`Queue`]: jobs wait in order, up to a limit. Slots and queues are served in
//! turn, one job each, so that neither a fast camera nor many clients can starve another.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tt_backend::{BackendChoice, Detector, Error, Model, Options, Watch};

type Job = Box<dyn FnOnce(&mut Detector) + Send>;

/// The thread that owns the detector. Dropping the engine ends the thread after the job that is running;
/// it is not waited for, and jobs that have not started are given up.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    watch: Watch,
    /// Breaks when the thread is through.
    ended: mpsc::Receiver<()>,
}

impl Engine {
    /// Opens a detector on a thread of its own, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// Those of [`Detector::open`], and the operating system's refusal to start a thread.
    pub fn start(options: Options) -> Result<Self, Error> {
        Self::start_with(move || Detector::open(&options))
    }

    /// As [`Engine::start`] with a detector that `open` gives.
    ///
    /// # Errors
    ///
    /// Those of `open`, and the operating system's refusal to start a thread.
    pub fn start_with(open: impl FnOnce() -> Result<Detector, Error> + Send + 'static) -> Result<Self, Error> {
        let shared = Arc::new(Shared::default());
        let (opened_sender, opened) = mpsc::sync_channel(1);
        let (until_ended, ended) = mpsc::sync_channel(0);
        let on_thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("detector".to_owned())
            .spawn(move || {
                // The detector is opened here, and never leaves: a device's context may belong to its thread.
                let _until_ended = until_ended;
                match open() {
                    Ok(mut detector) => {
                        let _ = opened_sender.send(Ok(detector.watch()));
                        on_thread.serve(&mut detector);
                    }
                    Err(error) => {
                        let _ = opened_sender.send(Err(error));
                    }
                }
            })
            .map_err(|reason| Error::System { action: "starting the detector's thread", reason })?;
        let watch = opened.recv().map_err(|_| Error::System {
            action: "opening the detector",
            reason: std::io::Error::other("its thread panicked; the panic is above"),
        })??;
        Ok(Self { shared, watch, ended })
    }

    /// Which backend and which weights the detector has.
    pub fn model(&self) -> Arc<Model> {
        self.watch.model()
    }

    /// The view of the detector for other threads.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Ends the engine as dropping it does. If it has a card, waits until that is closed, but no longer than `patience`: a
    /// process that ends before leaves the card in the middle of its work.
    pub fn close(self, patience: Duration) {
        self.stop();
        if self.model().backend == BackendChoice::P150 {
            // Nothing is ever sent.
            let _ = self.ended.recv_timeout(patience);
        }
    }

    fn stop(&self) {
        let mut state = self.shared.lock();
        state.stopping = true;
        // Freed outside the lock. Whoever waits for one of these jobs sees that it is gone.
        let _given_up = std::mem::take(&mut state.sources);
        drop(state);
        self.shared.wake.notify_one();
    }

    /// A new place for one job, served in turn with all others.
    pub fn newest_slot(&self) -> NewestSlot {
        let source = self.shared.add(Source::Newest(None));
        NewestSlot { shared: Arc::clone(&self.shared), source, replaced: AtomicU64::new(0) }
    }

    /// A new queue with `limit` places, served in turn with all others.
    pub fn queue(&self, limit: usize) -> Queue {
        let source = self.shared.add(Source::Queue(VecDeque::new()));
        Queue { shared: Arc::clone(&self.shared), source, limit, free: Arc::new(Semaphore::new(limit)) }
    }

    /// Number of jobs that panicked: a defect of the program, survived and counted.
    pub fn panics(&self) -> u64 {
        self.shared.panics.load(Ordering::Relaxed)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A place for one job: the newest. See [`Engine::newest_slot`].
#[derive(Debug)]
pub struct NewestSlot {
    shared: Arc<Shared>,
    source: usize,
    replaced: AtomicU64,
}

impl NewestSlot {
    /// Puts a job into the slot. If an older one is still waiting there, that one is given up and counted.
    /// Never waits for a job to run.
    pub fn offer(&self, job: impl FnOnce(&mut Detector) + Send + 'static) {
        let job: Job = Box::new(job);
        let older = match self.shared.lock().sources.get_mut(self.source) {
            Some(Source::Newest(slot)) => slot.replace(job),
            _ => return, // the engine is gone
        };
        if older.is_some() {
            self.replaced.fetch_add(1, Ordering::Relaxed);
            self.shared.replaced.fetch_add(1, Ordering::Relaxed);
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

/// Jobs that wait in order, up to a limit. See [`Engine::queue`].
///
/// A job needs a [`Place`] first. It is taken before anything is done for the job, so that a job which has to be
/// refused costs nothing.
#[derive(Clone, Debug)]
pub struct Queue {
    shared: Arc<Shared>,
    source: usize,
    limit: usize,
    /// One permit for each free place; those who wait for one get it in the order in which they came.
    free: Arc<Semaphore>,
}

/// Every place of a queue is taken.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("all {0} places in the queue are taken")]
pub struct Full(pub usize);

impl Queue {
    /// Takes a place in the queue.
    ///
    /// # Errors
    ///
    /// If none is free. Never waits.
    pub fn reserve(&self) -> Result<Place, Full> {
        let free = Arc::clone(&self.free).try_acquire_owned();
        free.map(|permit| self.place(permit)).map_err(|_| Full(self.limit))
    }

    /// As [`Queue::reserve`], but waits until there is a free place, behind those who have waited longer.
    ///
    /// # Errors
    ///
    /// None in practice: the queue is never closed.
    pub async fn wait_for_place(&self) -> Result<Place, Full> {
        let free = Arc::clone(&self.free).acquire_owned().await;
        free.map(|permit| self.place(permit)).map_err(|_| Full(self.limit))
    }

    fn place(&self, permit: OwnedSemaphorePermit) -> Place {
        let ticket = self.shared.tickets.fetch_add(1, Ordering::Relaxed);
        Place { queue: self.clone(), ticket, _permit: permit }
    }

    /// Number of places that are taken, by jobs that wait or run.
    pub fn taken(&self) -> usize {
        self.limit.saturating_sub(self.free.available_permits())
    }

    /// Number of jobs that were given up for newer ones in the engine's slots.
    pub fn frames_replaced(&self) -> u64 {
        self.shared.replaced.load(Ordering::Relaxed)
    }

    /// As [`Engine::panics`].
    pub fn panics(&self) -> u64 {
        self.shared.panics.load(Ordering::Relaxed)
    }

    /// Number of places.
    pub fn limit(&self) -> usize {
        self.limit
    }
}

/// A place in a queue. Dropping it frees it, and gives up its job unless that has already begun: nothing is
/// computed for a client that is gone.
#[derive(Debug)]
pub struct Place {
    queue: Queue,
    ticket: u64,
    /// Freed last, when the job is no longer in the queue.
    _permit: OwnedSemaphorePermit,
}

impl Place {
    /// Puts a job behind all others of the queue. If the engine is gone, the job is dropped at once.
    pub fn submit(&self, job: impl FnOnce(&mut Detector) + Send + 'static) {
        let job: Job = Box::new(job);
        if let Some(Source::Queue(jobs)) = self.queue.shared.lock().sources.get_mut(self.queue.source) {
            jobs.push_back((self.ticket, job));
        }
        self.queue.shared.wake.notify_one();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.queue.shared.lock();
        let given_up = match state.sources.get_mut(self.queue.source) {
            Some(Source::Queue(jobs)) => {
                let position = jobs.iter().position(|(ticket, _)| *ticket == self.ticket);
                position.and_then(|position| jobs.remove(position))
            }
            _ => None,
        };
        drop(state);
        drop(given_up);
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    panics: AtomicU64,
    /// Over all slots.
    replaced: AtomicU64,
    tickets: AtomicU64,
}

#[derive(Default)]
struct State {
    sources: Vec<Source>,
    /// The source that is looked at first the next time.
    next: usize,
    stopping: bool,
}

/// Where jobs wait.
enum Source {
    Newest(Option<Job>),
    Queue(VecDeque<(u64, Job)>),
}

impl Source {
    fn take(&mut self) -> Option<Job> {
        match self {
            Self::Newest(slot) => slot.take(),
            Self::Queue(jobs) => jobs.pop_front().map(|(_, job)| job),
        }
    }
}

impl State {
    /// The next job, sources in turn.
    fn take(&mut self) -> Option<Job> {
        let count = self.sources.len();
        for step in 0..count {
            let index = (self.next + step) % count;
            if let Some(job) = self.sources[index].take() {
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

    /// The number of the new source.
    fn add(&self, source: Source) -> usize {
        let mut state = self.lock();
        state.sources.push(source);
        state.sources.len() - 1
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

    use tt_backend::Size;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn engine() -> Engine {
        Engine::start(Options {
            backend: BackendChoice::Cpu,
            weights: Some("bundled".into()),
            threads: 1,
            network: Size::new(16, 16),
            ..Options::default()
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

    /// Names what runs, in order.
    fn naming(sender: &Sender<&'static str>, name: &'static str) -> impl FnOnce(&mut Detector) + Send + use<> {
        let sender = sender.clone();
        move |_| sender.send(name).unwrap()
    }

    #[test]
    fn those_who_wait_for_a_place_get_it_in_their_order() {
        let engine = engine();
        let queue = engine.queue(1);
        let place = queue.reserve().unwrap();
        let (sender, received) = channel();
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
            let waiting = ["first", "second"].map(|name| {
                let (queue, sender) = (queue.clone(), sender.clone());
                tokio::spawn(async move {
                    let _place = queue.wait_for_place().await.unwrap();
                    sender.send(name).unwrap();
                })
            });
            tokio::task::yield_now().await;
            drop(place);
            assert_eq!(queue.taken(), 1, "nobody comes before those who wait");
            queue.reserve().unwrap_err();
            for waiting in waiting {
                waiting.await.unwrap();
            }
        });
        assert_eq!(collect(&received, 2), ["first", "second"]);
        queue.reserve().unwrap();
    }

    #[test]
    fn a_queue_keeps_its_order_and_takes_turns_with_the_slots() {
        let engine = engine();
        let (camera, queue) = (engine.newest_slot(), engine.queue(3));
        let (sender, received) = channel();
        let end = block(&engine.newest_slot());
        let places: Vec<_> = ["first", "second", "third"]
            .map(|name| {
                let place = queue.reserve().unwrap();
                place.submit(naming(&sender, name));
                place
            })
            .into();
        assert_eq!(queue.taken(), 3);
        assert_eq!(queue.reserve().unwrap_err().to_string(), "all 3 places in the queue are taken");
        camera.offer(naming(&sender, "frame"));
        end.send(()).unwrap();
        assert_eq!(collect(&received, 4), ["frame", "first", "second", "third"]);
        drop(places);
        assert_eq!(queue.taken(), 0);
    }

    /// A camera that always has a next frame, and clients that always have a next request: each gets every second
    /// turn.
    #[test]
    fn neither_a_full_queue_nor_a_fast_camera_starves_the_other() {
        let engine = engine();
        let (camera, queue) = (Arc::new(engine.newest_slot()), engine.queue(64));
        let (sender, received) = channel();
        fn frame(camera: &Arc<NewestSlot>, sender: &Sender<&'static str>) {
            let (again, next) = (Arc::clone(camera), sender.clone());
            camera.offer(move |_| {
                if next.send("frame").is_ok() {
                    frame(&again, &next);
                }
            });
        }
        let end = block(&engine.newest_slot());
        frame(&camera, &sender);
        let places: Vec<_> = (0..64).map(|_| queue.reserve().unwrap()).collect();
        places.iter().for_each(|place| place.submit(naming(&sender, "request")));
        end.send(()).unwrap();
        let order = collect(&received, 128);
        for pair in order.chunks(2) {
            assert!(pair.contains(&"frame") && pair.contains(&"request"), "{order:?}");
        }
        drop(received);
    }

    #[test]
    fn a_place_that_is_left_takes_its_job_along() {
        let engine = engine();
        let queue = engine.queue(2);
        let (sender, received) = channel();
        let end = block(&engine.newest_slot());
        let (gone, stays) = (queue.reserve().unwrap(), queue.reserve().unwrap());
        gone.submit(naming(&sender, "gone"));
        stays.submit(naming(&sender, "stays"));
        drop(gone);
        assert_eq!(queue.taken(), 1);
        end.send(()).unwrap();
        assert_eq!(collect(&received, 1), ["stays"]);
        drop(sender);
        assert!(received.recv_timeout(SOON).is_err(), "nothing else ran");
    }

    #[test]
    fn jobs_are_dropped_with_the_engine() {
        let engine = engine();
        let queue = engine.queue(2);
        let (sender, received) = channel::<()>();
        let end = block(&engine.newest_slot());
        let place = queue.reserve().unwrap();
        place.submit(move |_| sender.send(()).unwrap());
        drop(engine);
        assert!(received.recv_timeout(SOON).is_err(), "it was dropped, not run");
        end.send(()).unwrap();
        drop(place);
        queue.reserve().unwrap().submit(|_| panic!("must not run"));
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
