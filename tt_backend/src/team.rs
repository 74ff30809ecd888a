//! The threads that work on one frame together.
//!
//! Why not rayon: a frame is ten stages of a few dozen equal tasks, called from a thread outside of any pool. Rayon's
//! entry from outside allocates now and then (its injector queue), and its workers spin before they sleep. Here a stage
//! costs one wake-up, allocates nothing, and workers without work sleep.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::Error;

/// One task: worker number below [`Team::size`], task number.
type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// A fixed set of threads, of which the calling thread is one.
///
/// ```
/// use tt_backend::team::Team;
/// let mut team = Team::new(2)?;
/// let mut squares = [0; 5];
/// team.for_chunks(&mut squares, 2, |_worker, number, chunk| {
///     chunk.iter_mut().enumerate().for_each(|(offset, square)| *square = (2 * number + offset).pow(2));
/// });
/// assert_eq!(squares, [0, 1, 4, 9, 16]);
/// # Ok::<(), tt_backend::Error>(())
/// ```
#[derive(Debug)]
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Signalled when a stage begins and at the end of the team.
    begin: Condvar,
    /// Signalled when the last worker has left a stage.
    end: Condvar,
    /// Number of the next task that nobody has taken.
    next: AtomicUsize,
}

#[derive(Debug)]
struct State {
    /// Counts stages, so that a worker knows a new one from the one it has just left.
    stage: u64,
    job: Option<Job>,
    /// Workers that are in the current stage. Those that have not come to it are not waited for: on a machine that has
    /// other things to do, one may take longer to wake up than the others to do its part.
    busy: usize,
    panicked: bool,
    stop: bool,
}

/// The current stage. The pointer is valid while `State::job` holds it and while `State::busy` is not zero: `Team::run`
/// takes it out, and then waits for those who are busy.
#[derive(Clone, Copy)]
struct Job {
    task: *const Task<'static>,
    tasks: usize,
}

// SAFETY: the pointee is `Sync`, and `Team::run` keeps it alive while workers use it.
unsafe impl Send for Job {}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("tasks", &self.tasks).finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes tasks until none is left.
    fn work(&self, worker: usize, task: &Task<'_>, tasks: usize) {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= tasks {
                return;
            }
            task(worker, number);
        }
    }

    fn worker(&self, worker: usize) {
        let mut seen = 0;
        loop {
            let job = {
                let mut state = self.lock();
                loop {
                    if state.stop {
                        return;
                    }
                    // `None` when the others were done before this one woke up.
                    if state.stage != seen
                        && let Some(job) = state.job
                    {
                        seen = state.stage;
                        state.busy += 1;
                        break job;
                    }
                    state = self.begin.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            // SAFETY: this worker is counted in `busy` since there was a job, so `Team::run` has not returned yet and what
            // it borrowed is alive.
            let task = unsafe { &*job.task };
            let panicked = catch_unwind(AssertUnwindSafe(|| self.work(worker, task, job.tasks))).is_err();
            let mut state = self.lock();
            state.panicked |= panicked;
            state.busy -= 1;
            if state.busy == 0 {
                self.end.notify_one();
            }
        }
    }
}

/// Number of cores that this process may use, at least one.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Team {
    /// A team of `size` threads, the caller's among them.
    ///
    /// # Errors
    ///
    /// [`Error::System`] when a thread cannot be started.
    pub fn new(size: usize) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State { stage: 0, job: None, busy: 0, panicked: false, stop: false }),
            begin: Condvar::new(),
            end: Condvar::new(),
            next: AtomicUsize::new(0),
        });
        let mut team = Self { shared, workers: Vec::new() };
        for worker in 1..size {
            let shared = Arc::clone(&team.shared);
            let thread = std::thread::Builder::new()
                .name(format!("superpoint-{worker}"))
                .spawn(move || shared.worker(worker))
                .map_err(|reason| Error::System { action: "starting a thread of the network", reason })?;
            team.workers.push(thread);
        }
        Ok(team)
    }

    /// Number of threads.
    pub fn size(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(worker, number)` once for each number below `tasks`, on all threads, and returns when all are done.
    ///
    /// # Panics
    ///
    /// When a task panics, after all threads have left the stage.
    pub fn run(&mut self, tasks: usize, task: &Task<'_>) {
        if self.workers.is_empty() || tasks <= 1 {
            (0..tasks).for_each(|number| task(0, number));
            return;
        }
        let pointer: *const Task<'_> = task;
        // SAFETY: only the lifetime changes; the pointer is not used after this function, which waits for all workers.
        let pointer = unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(pointer) };
        {
            let mut state = self.shared.lock();
            self.shared.next.store(0, Ordering::Relaxed);
            state.stage += 1;
            state.job = Some(Job { task: pointer, tasks });
        }
        self.shared.begin.notify_all();
        // The caller's own panic, too, must not leave this function while workers use `task`.
        let own = catch_unwind(AssertUnwindSafe(|| self.shared.work(0, task, tasks)));
        let mut state = self.shared.lock();
        state.job = None;
        while state.busy > 0 {
            state = self.shared.end.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let panicked = std::mem::take(&mut state.panicked);
        drop(state);
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        assert!(!panicked, "a thread of the network panicked");
    }

    /// Cuts `values` into chunks of `length`, of which the last may be shorter, and calls `task(worker, number, chunk)`
    /// once for each, on all threads. Returns when all are done.
    ///
    /// # Panics
    ///
    /// When `length` is zero, and as [`Team::run`].
    pub fn for_chunks<T: Send>(
        &mut self,
        values: &mut [T],
        length: usize,
        task: impl Fn(usize, usize, &mut [T]) + Sync,
    ) {
        let total = values.len();
        let start = Start(values.as_mut_ptr());
        self.run(total.div_ceil(length), &|worker, number| {
            let first = number * length;
            // SAFETY: `run` calls this once for each number, so no two chunks overlap; they lie within `values`, which is
            // borrowed until `run` returns; `T` is `Send`, so another thread may write it.
            let chunk = unsafe { std::slice::from_raw_parts_mut(start.at(first), length.min(total - first)) };
            task(worker, number, chunk);
        });
    }
}

/// Where values begin that several threads write, each its own part.
struct Start<T>(*mut T);

// SAFETY: only an address; whoever writes there says why that is allowed.
unsafe impl<T> Sync for Start<T> {}

impl<T> Start<T> {
    fn at(&self, index: usize) -> *mut T {
        self.0.wrapping_add(index)
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.begin.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks; there is no other way for it to fail.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_on_any_team() {
        for size in [1, 2, 3, 5] {
            let mut team = Team::new(size).unwrap();
            assert_eq!(team.size(), size);
            for tasks in [0, 1, 2, 7, 100] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                team.run(tasks, &|worker, number| {
                    assert!(worker < size);
                    counts[number].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            }
        }
    }

    /// Some workers come to such a stage when it is over, and some to the next one.
    #[test]
    fn stages_that_are_over_before_all_workers_are_awake() {
        let mut team = Team::new(4).unwrap();
        for stage in 0..20_000 {
            let mut values = vec![0; 2 + stage % 3];
            team.for_chunks(&mut values, 1, |_, number, chunk| chunk[0] += number + stage);
            let expected: Vec<usize> = (stage..stage + values.len()).collect();
            assert_eq!(values, expected);
        }
    }

    #[test]
    fn chunks_cover_everything_once() {
        let mut team = Team::new(3).unwrap();
        for (total, length) in [(0, 4), (1, 4), (8, 4), (9, 4), (100, 7)] {
            let mut values = vec![0; total];
            team.for_chunks(&mut values, length, |_, number, chunk| {
                assert!(chunk.len() == length || number == total / length);
                chunk.iter_mut().enumerate().for_each(|(offset, value)| *value += number * length + offset + 1);
            });
            assert_eq!(values, (1..=total).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let mut team = Team::new(3).unwrap();
        let result = catch_unwind(AssertUnwindSafe(|| team.run(50, &|_, number| assert_ne!(number, 20))));
        assert!(result.is_err());
        let done = AtomicUsize::new(0);
        team.run(50, &|_, _| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 50);
    }
}
