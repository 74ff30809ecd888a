//! The way of the images, each step on a thread of its own, so that the network never waits for the others.
//!
//! ```text
//! reader -> decoders, taking turns -> detector -> sink
//! ```
//!
//! A decoder also resizes, so that the detector is left with the network and the keypoints; but not for a card, which
//! resizes itself.
//!
//! Between them are short queues: whoever is faster waits, and memory does not grow with the recording.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use anyhow::{Context as _, anyhow};
use tt_backend::{BackendChoice, Detections, Detector};

use super::bag::{Damage, Message, Messages};
use super::picture::{Ahead, Header, Picture, Rejected};
use super::topic::ImageKind;
use crate::settings::Settings;

/// Messages that may wait in front of each step.
const QUEUE: usize = 2;

/// More decoders than this no network outruns.
const MAX_DECODERS: usize = 4;

/// What came of a message.
#[derive(Debug)]
pub(super) enum Outcome {
    Detected(Found),
    Rejected(Rejected),
}

/// The keypoints of an image.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) header: Header,
    pub(super) detections: Detections,
    /// How long reading the channel out of the message took.
    pub(super) decoding: std::time::Duration,
}

/// How reading ended.
#[derive(Debug)]
pub(super) struct End {
    /// Messages that were read, those skipped over included.
    pub(super) read: u64,
    pub(super) damage: Vec<Damage>,
}

/// Runs every `every`-th message through the detector, in order, and gives what came of it to `sink`, with how much of
/// the recording is read. Ends early, in good order, when `stop` is set.
///
/// # Errors
///
/// Of the detector and of `sink`; a message that is no image is none, and damage of the recording neither.
pub(super) fn run(
    messages: Messages,
    every: usize,
    kind: ImageKind,
    settings: &Settings,
    detector: &mut Detector,
    stop: &AtomicBool,
    mut sink: impl FnMut(Outcome, f32) -> anyhow::Result<()> + Send,
) -> anyhow::Result<End> {
    let model = detector.model();
    let frame = (model.backend == BackendChoice::Cpu).then_some(model.network);
    let decoders = thread::available_parallelism().map_or(1, usize::from).min(MAX_DECODERS);
    thread::scope(|scope| {
        let mut to_decoders = Vec::new();
        let mut decoded = Vec::new();
        for _ in 0..decoders {
            let (sender, waiting) = sync_channel(QUEUE);
            let (to_detector, pictures) = sync_channel(QUEUE);
            let ahead = frame.map(Ahead::to).transpose()?;
            to_decoders.push(sender);
            decoded.push(pictures);
            scope.spawn(move || decode(&waiting, &to_detector, kind, settings, ahead));
        }
        let reader = scope.spawn(move || read(messages, every, &to_decoders, stop));
        let (to_sink, results) = sync_channel::<(Outcome, f32)>(QUEUE);
        let sink = scope.spawn(move || results.into_iter().try_for_each(|(outcome, progress)| sink(outcome, progress)));

        let detected = detect(&decoded, &to_sink, settings, detector);
        // Whoever still waits for a place in a queue learns that nobody takes from it.
        drop((decoded, to_sink));
        let panicked = |what: &str| anyhow!("{what} panicked; the panic is above");
        let end = reader.join().map_err(|_| panicked("reading the recording"))?;
        // When the sink failed, the detector only noticed that nobody listens.
        sink.join().map_err(|_| panicked("writing the results"))??;
        detected?;
        Ok(end)
    })
}

fn read(mut messages: Messages, every: usize, decoders: &[SyncSender<Message>], stop: &AtomicBool) -> End {
    let mut read = 0;
    let until_stop = messages.by_ref().take_while(|_| !stop.load(Ordering::Relaxed));
    let wanted = until_stop.inspect(|_| read += 1).step_by(every);
    for (message, decoder) in wanted.zip(decoders.iter().cycle()) {
        if decoder.send(message).is_err() {
            break;
        }
    }
    End { read, damage: messages.damage().to_vec() }
}

type Decoded = (Result<Picture, Rejected>, f32);

fn decode(
    waiting: &Receiver<Message>,
    to_detector: &SyncSender<Decoded>,
    kind: ImageKind,
    settings: &Settings,
    mut ahead: Option<Ahead>,
) {
    for message in waiting {
        let progress = message.progress;
        if to_detector.send((Picture::read(message, kind, settings, ahead.as_mut()), progress)).is_err() {
            break;
        }
    }
}

/// Takes from the decoders in turn, as the reader gave to them, so that the order stays.
fn detect(
    decoded: &[Receiver<Decoded>],
    to_sink: &SyncSender<(Outcome, f32)>,
    settings: &Settings,
    detector: &mut Detector,
) -> anyhow::Result<()> {
    for pictures in decoded.iter().cycle() {
        let Ok((picture, progress)) = pictures.recv() else { break };
        let outcome = match picture {
            Err(rejected) => Outcome::Rejected(rejected),
            Ok(picture) => {
                let plane = picture.plane()?;
                let mut detections = detector.detect(&plane, &settings.params).context("detection failed")?;
                picture.complete(&mut detections);
                Outcome::Detected(Found { header: picture.header, detections, decoding: picture.decoding })
            }
        };
        if to_sink.send((outcome, progress)).is_err() {
            break;
        }
    }
    Ok(())
}
