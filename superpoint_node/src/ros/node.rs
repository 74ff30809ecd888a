//! The node's life: start, spin, end.

use std::panic;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::executor::LocalPool;
use futures::task::LocalSpawnExt as _;
use futures::{FutureExt as _, Stream, StreamExt as _};
use r2r::superpoint_p150::msg::Keypoints;
use r2r::{Node, QosProfile};

use super::frame::{Output, Pipeline};
use super::parameters::{self, NodeParameters};
use super::shutdown::Shutdown;
use super::tally::Tally;
use crate::engine::{Engine, NewestSlot};

/// Name of the node until a remapping gives another.
const NODE_NAME: &str = "superpoint";

/// How long spinning waits for something to happen: the longest that a signal goes unnoticed.
const SPIN: Duration = Duration::from_millis(50);

/// Runs the node until a signal ends it.
///
/// An error at start is one sentence on standard error, and exit status 1.
pub fn main() -> ExitCode {
    match run() {
        Ok(()) => {
            // Without waiting for the detector's thread, which may be in the middle of a frame.
            std::process::exit(0)
        }
        Err(reason) => {
            eprintln!("superpoint_node: {reason}");
            std::process::exit(1)
        }
    }
}

fn run() -> Result<(), String> {
    let shutdown = Shutdown::listen().map_err(|error| format!("cannot listen for signals: {error}"))?;

    let context = create_context()?;
    let mut node = Node::create(context, NODE_NAME, "").map_err(|error| format!("cannot create the node: {error}"))?;
    let logger = node.logger().to_owned();

    let parameters = Arc::new(Mutex::new(NodeParameters::default()));
    let (serve_parameters, _) =
        node.make_derived_parameter_handler(parameters.clone()).map_err(parameters::reason_of)?;
    let fixed = {
        let mut parameters = parameters.lock().unwrap_or_else(PoisonError::into_inner);
        parameters.started();
        for name in &parameters.unknown {
            r2r::log_warn!(&logger, "parameter {name} is not known and has no effect");
        }
        parameters.fixed.clone()
    };

    let engine = Engine::start(fixed.detector_options()).map_err(|error| error.to_string())?;

    let input_qos = QosProfile::default().keep_last(fixed.input_depth);
    let input_qos = if fixed.reliable_input { input_qos.reliable() } else { input_qos.best_effort() };
    let images = node
        .subscribe_raw("image", "sensor_msgs/msg/Image", input_qos)
        .map_err(|error| format!("cannot subscribe to image: {error}"))?;
    let publisher = node
        .create_publisher::<Keypoints>("keypoints", QosProfile::default())
        .map_err(|error| format!("cannot publish keypoints: {error}"))?;

    let pipeline = Pipeline {
        logger: logger.clone(),
        parameters,
        tally: Arc::new(Tally::default()),
        output: Output::new(publisher),
    };
    announce(&logger, &node, &engine, fixed.reliable_input);

    let mut pool = LocalPool::new();
    pool.spawner().spawn_local(serve_parameters).map_err(|error| format!("cannot serve parameters: {error}"))?;

    let slot = engine.newest_slot();
    let mut images = images;
    while !shutdown.requested() {
        node.spin_once(SPIN);
        pool.run_until_stalled();
        offer_all(&mut images, &slot, &pipeline);
    }

    r2r::log_info!(&logger, "ending on a signal; frames: {}", pipeline.tally.summary(slot.replaced()));
    pipeline.output.close();
    drop(node);
    Ok(())
}

/// r2r queues ten messages and then drops the newest, so they are taken out at once; of several, the newest stays in
/// the slot.
fn offer_all(images: &mut (impl Stream<Item = Vec<u8>> + Unpin), slot: &NewestSlot, pipeline: &Pipeline) {
    while let Some(Some(message)) = images.next().now_or_never() {
        pipeline.tally.received();
        if !pipeline.admits(&message) {
            continue;
        }
        let frame = pipeline.clone();
        slot.offer(move |detector| frame.run(&message, detector));
    }
}

/// r2r panics with rcl's own text when the command line's ROS arguments are wrong.
fn create_context() -> Result<r2r::Context, String> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let created = panic::catch_unwind(r2r::Context::create);
    panic::set_hook(hook);
    match created {
        Ok(Ok(context)) => Ok(context),
        Ok(Err(error)) => Err(format!("cannot start ROS: {error}")),
        Err(payload) => {
            let text = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref::<&str>().copied())
                .unwrap_or("unknown reason");
            // rcl adds where in its source it happened.
            Err(format!("cannot start ROS: {}", text.split(", at ").next().unwrap_or(text)))
        }
    }
}

fn announce(logger: &str, node: &Node, engine: &Engine, reliable_input: bool) {
    let model = engine.model();
    r2r::log_info!(logger, "backend: {}", model.description);
    if let Some(reason) = &model.reason {
        r2r::log_info!(logger, "{reason}");
    }
    let weights = &model.weights;
    let file = weights.path.as_ref().map_or_else(|| "bundled".to_owned(), |path| path.display().to_string());
    r2r::log_info!(logger, "weights: {} ({file}, sha256 {})", weights.name, weights.sha256);
    let namespace = node.namespace().unwrap_or_default();
    let reliability = if reliable_input { "reliable" } else { "best_effort" };
    r2r::log_info!(
        logger,
        "subscribed to image ({reliability}), publishing keypoints (reliable), in namespace {namespace} unless remapped"
    );
}
