//! The thread that owns the card, and the patience of whoever waits for it.
//!
//! TT-NN's calls block, for ever if the card hangs, and its handles belong to one thread. So the card has a thread of its
//! own, and the caller waits with a deadline. A card that failed or did not answer in time is not asked again: what is in its
//! queues then is anyone's guess.

use std::any::Any;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::device::{self, Device};
use super::session::{Outcome, Session, device_radius};
use crate::{Detections, Error, Params, Size};

/// How long to wait for the card.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadlines {
    /// For one step of opening the card, and for a new size or radius: they may compile kernels, which takes minutes on a first
    /// start.
    pub(super) prepare: Duration,
    /// For an image whose programs are all there, which takes milliseconds.
    pub(super) answer: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { prepare: Duration::from_secs(10 * 60), answer: Duration::from_secs(10) }
    }
}

/// An image, and memory for what it gives.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) size: Size,
    /// 0 to 255 in bf16, as bits.
    pub(super) plane: Vec<u16>,
    pub(super) params: Params,
    pub(super) out: Detections,
}

/// What became of a job.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) job: Job,
    pub(super) outcome: Outcome,
    /// From the start of the upload to the end.
    pub(super) elapsed: Duration,
}

#[derive(Debug)]
enum Task {
    Detect(Job),
    /// The stages of an image of this size so many times, one after the other.
    Replay(Size, Params, usize),
}

#[derive(Debug)]
enum Message {
    /// What comes next may take as long as preparing does.
    Preparing,
    Ready(String),
    Done(Box<Done>),
    Replayed(Duration),
    Failed(String),
}

/// The caller's end.
#[derive(Debug)]
pub(super) struct Worker {
    /// `None` once no more will come.
    tasks: Option<SyncSender<Task>>,
    messages: Receiver<Message>,
    deadlines: Deadlines,
    /// Why the card is not asked any more.
    lost: Option<String>,
    /// Whether it has not answered in time, and so will not answer to being closed either.
    hangs: bool,
}

impl Worker {
    /// Starts the thread, which opens its card with `open` and prepares it; `open` calls its first argument after each step,
    /// and also gives a name for people. Waits until it is ready.
    ///
    /// A card that cannot be prepared may hang when it is closed, so `open` leaves it in the place that its second argument
    /// is; what went wrong is told before it is closed.
    ///
    /// # Errors
    ///
    /// What went wrong, or that it took too long.
    pub(super) fn start<D: Device + 'static>(
        deadlines: Deadlines,
        open: impl FnOnce(&dyn Fn(), &mut Option<Box<dyn Any>>) -> Result<(Session<D>, String), String> + Send + 'static,
    ) -> Result<(Self, String), Error> {
        // One task and its answers: the caller waits for each.
        let (tasks, next) = sync_channel::<Task>(1);
        let (say, messages) = sync_channel(2);
        let run = move || {
            let preparing = || {
                let _ = say.send(Message::Preparing);
            };
            let mut card = None;
            match open(&preparing, &mut card) {
                Ok((mut session, name)) => {
                    let mut going = say.send(Message::Ready(name)).is_ok();
                    while going && let Ok(task) = next.recv() {
                        let message = match task {
                            Task::Detect(job) => detect(&mut session, job, preparing).map(Box::new).map(Message::Done),
                            Task::Replay(size, params, times) => {
                                preparing();
                                session.replay(size, &params, times).map(Message::Replayed)
                            }
                        };
                        going = say.send(message.unwrap_or_else(|error| Message::Failed(error.to_string()))).is_ok();
                    }
                }
                Err(reason) => {
                    let _ = say.send(Message::Failed(reason));
                }
            }
        };
        thread::Builder::new()
            .name("p150".into())
            .spawn(run)
            .map_err(|reason| Error::System { action: "starting the card's thread", reason })?;
        let mut worker = Self { tasks: Some(tasks), messages, deadlines, lost: None, hangs: false };
        match worker.answer(deadlines.prepare)? {
            Message::Ready(name) => Ok((worker, name)),
            message => Err(worker.lose(format!("unexpected {message:?} while it was opened"))),
        }
    }

    /// Sends a job and waits for what becomes of it.
    ///
    /// # Errors
    ///
    /// [`Error::Device`], from the first failure on always.
    pub(super) fn run(&mut self, job: Job) -> Result<Done, Error> {
        match self.ask(Task::Detect(job))? {
            Message::Done(done) => Ok(*done),
            message => Err(self.lose(format!("unexpected {message:?}"))),
        }
    }

    /// How long the card takes for the stages of so many images of `size`, one right after the other. The size and the
    /// radius must have been used before.
    ///
    /// # Errors
    ///
    /// As [`Worker::run`].
    pub(super) fn replay(&mut self, size: Size, params: &Params, times: usize) -> Result<Duration, Error> {
        match self.ask(Task::Replay(size, params.clone(), times))? {
            Message::Replayed(duration) => Ok(duration),
            message => Err(self.lose(format!("unexpected {message:?}"))),
        }
    }

    fn ask(&mut self, task: Task) -> Result<Message, Error> {
        if let Some(reason) = &self.lost {
            let reason = format!("it was given up earlier ({reason}); restart to open it again");
            return Err(Error::Device { reason });
        }
        if self.tasks.as_ref().is_none_or(|tasks| tasks.send(task).is_err()) {
            return Err(self.lose("its thread has ended".into()));
        }
        self.answer(self.deadlines.answer)
    }

    /// What comes within `deadline`, or within that of preparing once the thread says that it does.
    fn answer(&mut self, mut deadline: Duration) -> Result<Message, Error> {
        loop {
            match self.receive(deadline)? {
                Message::Preparing => deadline = self.deadlines.prepare,
                message => return Ok(message),
            }
        }
    }

    fn receive(&mut self, deadline: Duration) -> Result<Message, Error> {
        match self.messages.recv_timeout(deadline) {
            Ok(Message::Failed(reason)) => Err(self.lose(reason)),
            Ok(message) => Ok(message),
            Err(RecvTimeoutError::Timeout) => {
                self.hangs = true;
                Err(self
                    .lose(format!("no answer for {} s: it hangs, reset it with `tt-smi -r`", deadline.as_secs_f32())))
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.lose("its thread has ended".into())),
        }
    }

    fn lose(&mut self, reason: String) -> Error {
        self.lost = Some(reason.clone());
        Error::Device { reason }
    }
}

/// Waits until the card is closed, so that the process does not end in the middle of that; not if it hangs.
impl Drop for Worker {
    fn drop(&mut self) {
        self.tasks = None;
        let patience = if self.hangs { Duration::ZERO } else { self.deadlines.answer };
        // The thread says nothing more; the channel breaks when it is through.
        while self.messages.recv_timeout(patience).is_ok() {}
    }
}

fn detect<D: Device>(session: &mut Session<D>, mut job: Job, preparing: impl FnOnce()) -> device::Result<Done> {
    let start = Instant::now();
    if !session.is_prepared(job.size, &job.params) {
        preparing();
        session.prepare(&[job.size], device_radius(&job.params).as_slice())?;
    }
    let outcome = session.detect(job.size, &job.plane, &job.params, &mut job.out)?;
    Ok(Done { job, outcome, elapsed: start.elapsed() })
}
