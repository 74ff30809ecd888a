//! The node's life: start, spin, end.

use std::io::Write as _;
use std::panic;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use r2r::std_srvs::srv::SetBool;
use r2r::{Node, QosProfile, ServiceRequest};
use tracing::level_filters::LevelFilter;
use tt_backend::Params;

use super::arguments::{self, Request};
use super::camera::Camera;
use super::diagnostics::Diagnostics;
use super::model_info::ModelInfo;
use super::names::Names;
use super::parameter_services::{ParameterServices, next};
use super::parameters::{Fixed, Live, NodeParameters, TABLE, why_unknown};
use super::shutdown::Shutdown;
use crate::engine::Engine;
use crate::http::{HttpOptions, Limits, Server};
use crate::log;

/// Name of the node until a remapping gives another.
const NODE_NAME: &str = "superpoint";

/// How long spinning waits for something to happen: the longest that a signal goes unnoticed.
const SPIN: Duration = Duration::from_millis(50);

/// How long closing a card may take at the end.
const CARD_PATIENCE: Duration = Duration::from_millis(300);

/// Runs the node until a signal ends it.
///
/// An error at start is one sentence on standard error, and exit status 1; 2 for unknown arguments.
pub fn main() -> ExitCode {
    // Whatever the bytes: `args` would panic at a text that is not UTF-8.
    let given = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    match arguments::read(given) {
        Request::Run => {}
        Request::Print(text) => {
            // Whoever reads it may be gone.
            let _ = std::io::stdout().write_all(text.as_bytes());
            return ExitCode::SUCCESS;
        }
        Request::Unknown(sentence) => {
            log::say(format_args!("superpoint_node: {sentence}"));
            return ExitCode::from(2);
        }
    }
    // What the HTTP server has to say; the node itself logs through ROS.
    log::to_stderr(LevelFilter::WARN, log::Format::Text);
    match run() {
        Ok(()) => {
            // Without waiting for the detector's thread, which may be in the middle of a frame.
            std::process::exit(0)
        }
        Err(reason) => {
            log::say(format_args!("superpoint_node: {reason}"));
            std::process::exit(1)
        }
    }
}

fn run() -> Result<(), String> {
    let shutdown = Shutdown::listen().map_err(|error| format!("cannot listen for signals: {error}"))?;

    let context = create_context()?;
    let mut node = Node::create(context, NODE_NAME, "").map_err(|error| format!("cannot create the node: {error}"))?;
    let logger = node.logger().to_owned();

    let parameters = Arc::new(Mutex::new(initial_parameters(&node, &logger)?));
    let fixed = lock(&parameters).fixed.clone();
    let cannot = |what: &'static str| move |error: r2r::Error| format!("cannot {what}: {error}");
    let mut simulated_time = SimulatedTime(false);
    simulated_time.set(lock(&parameters).live.use_sim_time, &mut node).map_err(cannot("subscribe to /clock"))?;

    let engine = Engine::start(fixed.detector_options()).map_err(|error| error.to_string())?;
    announce(&logger, &engine);

    let mut services =
        ParameterServices::start(&mut node, Arc::clone(&parameters)).map_err(cannot("serve parameters"))?;
    let mut switch = Switch::start(&mut node).map_err(cannot("serve ~/enable"))?;
    let mut model_info = ModelInfo::latch(&mut node, engine.model()).map_err(cannot("publish ~/model_info"))?;

    let names = Names::of(&node).map_err(cannot("find out the node's name"))?;
    let only = [String::new()];
    let namespaces = if fixed.cameras.is_empty() { &only[..] } else { &fixed.cameras[..] };
    let mut cameras = namespaces
        .iter()
        .enumerate()
        .map(|(index, name)| Camera::open(&mut node, &names, &engine, (index, name), &fixed, &parameters))
        .collect::<Result<Vec<_>, _>>()?;
    let mut diagnostics = Diagnostics::start(&mut node, cameras.len()).map_err(cannot("publish /diagnostics"))?;

    let server = if fixed.http_enabled { Some(serve_http(&fixed, &lock(&parameters).live, &engine)?) } else { None };
    if let Some(server) = &server {
        r2r::log_info!(&logger, "listening on http://{}", server.address());
    }

    while !shutdown.requested() {
        node.spin_once(SPIN);
        services.serve();
        switch.serve(&logger);
        let live = lock(&parameters).live.clone();
        for camera in &mut cameras {
            camera.offer_all(&live, switch.on);
        }
        if let Err(error) = simulated_time.set(live.use_sim_time, &mut node) {
            r2r::log_error!(&logger, "cannot subscribe to /clock: {error}");
        }
        if let Err(error) = model_info.update(engine.model()) {
            r2r::log_error!(&logger, "cannot publish ~/model_info: {error}");
        }
        diagnostics.report_when_due(&node, &engine, &mut cameras, switch.on);
    }

    for camera in &cameras {
        let prefix = if camera.name.is_empty() { String::new() } else { format!("{}: ", camera.name) };
        r2r::log_info!(&logger, "{prefix}ending on a signal; frames: {}", camera.counts());
    }
    for camera in &cameras {
        camera.pipeline.output.close();
    }
    drop(node);
    if let Some(server) = server {
        server.stop();
    }
    engine.close(CARD_PATIENCE);
    Ok(())
}

/// The server of `superpoint serve` on the node's detector. Requests that do not say otherwise are detected with the
/// node's parameters as they are at start.
fn serve_http(fixed: &Fixed, live: &Live, engine: &Engine) -> Result<Server, String> {
    let server = Server::start(HttpOptions {
        listen: fixed.http.clone(),
        // Whether messages carry descriptors is a matter of the topic.
        params: Params { return_descriptors: true, ..live.detection.clone() },
        channel: live.channel,
        // The node ends within a second.
        limits: Limits { drain: Duration::from_millis(400), ..Limits::default() },
    })
    .map_err(|error| format!("{:#}", anyhow::Error::from(error)))?;
    server.attach(engine);
    Ok(server)
}

fn lock(parameters: &Mutex<NodeParameters>) -> MutexGuard<'_, NodeParameters> {
    parameters.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The defaults, changed by what the command line and files give.
fn initial_parameters(node: &Node, logger: &str) -> Result<NodeParameters, String> {
    let mut parameters = NodeParameters::default();
    let given = node.params.lock().unwrap_or_else(PoisonError::into_inner);
    let known = |name: &str| TABLE.iter().any(|entry| entry.name == name);
    let values = given.iter().filter(|(name, _)| known(name)).map(|(name, given)| (name.as_str(), &given.value));
    parameters.set_all(values)?;
    parameters.started();
    for reason in given.keys().filter_map(|name| why_unknown(name)) {
        r2r::log_warn!(logger, "{reason}");
    }
    Ok(parameters)
}

/// `~/enable`: while it is off, images are passed over.
struct Switch {
    requests: BoxStream<'static, ServiceRequest<SetBool::Service>>,
    on: bool,
}

impl Switch {
    fn start(node: &mut Node) -> r2r::Result<Self> {
        let requests = node.create_service::<SetBool::Service>("~/enable", QosProfile::services_default())?;
        Ok(Self { requests: requests.boxed(), on: true })
    }

    fn serve(&mut self, logger: &str) {
        while let Some(request) = next(&mut self.requests) {
            let (before, on) = (self.on, request.message.data);
            self.on = on;
            let state = if on { "enabled" } else { "disabled" };
            if on != before {
                r2r::log_info!(logger, "{state} by ~/enable");
            }
            let message = if on == before { format!("was {state} already") } else { state.to_owned() };
            // Whoever asked may be gone.
            let _ = request.respond(SetBool::Response { success: true, message });
        }
    }
}

/// Whether ROS time comes from /clock; r2r looks at `use_sim_time` only with its own parameter services.
struct SimulatedTime(bool);

impl SimulatedTime {
    fn set(&mut self, wanted: bool, node: &mut Node) -> r2r::Result<()> {
        if wanted != self.0 {
            self.0 = wanted; // also when it fails: it is tried, and complained of, once
            let source = node.get_time_source();
            if wanted {
                source.enable_sim_time(node)?;
            } else {
                source.disable_sim_time();
            }
        }
        Ok(())
    }
}

/// r2r panics with rcl's own text when the command line's ROS arguments are wrong.
fn create_context() -> Result<r2r::Context, String> {
    if let Some(argument) = std::env::args_os().find(|argument| argument.to_str().is_none()) {
        return Err(format!("cannot start ROS: the argument {argument:?} is not UTF-8"));
    }
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let created = panic::catch_unwind(r2r::Context::create);
    panic::set_hook(hook);
    match created {
        Ok(Ok(context)) => Ok(context),
        Ok(Err(error)) => Err(format!(
            "cannot start ROS: {error}; often its log cannot be written (ROS_LOG_DIR, else ROS_HOME/log, else ~/.ros/log)"
        )),
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

fn announce(logger: &str, engine: &Engine) {
    let model = engine.model();
    r2r::log_info!(logger, "backend: {}", model.description);
    if let Some(reason) = &model.reason {
        r2r::log_info!(logger, "{reason}");
    }
    let weights = &model.weights;
    let file = weights.path.as_ref().map_or_else(|| "bundled".to_owned(), |path| path.display().to_string());
    r2r::log_info!(logger, "weights: {} ({file}, sha256 {})", weights.name, weights.sha256);
}
