//! `superpoint bench http`: the server on a photo, over loopback, and perhaps another server beside it.

use std::io::Read as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use serde::Serialize;

use super::detect::read;
use super::{DetectorArgs, Outcome, print};
use crate::channel::Channel;
use crate::decode::Samples;
use crate::engine::Engine;
use crate::http::{HttpOptions, Listen, Server};

#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:\n  \
    superpoint bench http photo.jpg\n  \
    superpoint bench http photo.jpg --against http://127.0.0.1:20001 --json\n\n\
    `outside` is what a server takes from the last byte of a request to the first of its answer, without the network.\n\
    superpoint_node/benches/http has a server in Python to compare with."
)]
pub(super) struct HttpArgs {
    /// A PNG or JPEG file
    image: PathBuf,
    /// Another server of the same contract, measured in turn with this one
    #[arg(long, value_name = "URL")]
    against: Option<String>,
    /// Measured requests of each kind, after three that are not
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    detector: DetectorArgs,
}

/// One route, all servers.
#[derive(Serialize)]
struct RouteReport {
    route: &'static str,
    this: ServerReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    other: Option<ServerReport>,
    /// `this` divided by `other`, medians outside the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_outside: Option<f64>,
}

/// Medians in milliseconds.
#[derive(Serialize)]
struct ServerReport {
    outside_ms: f64,
    outside_min_ms: f64,
    network_ms: f64,
    round_trip_ms: f64,
    /// Every stage by the server's own name for it.
    stages_ms: Vec<(String, f64)>,
}

/// What one request took.
struct Sample {
    stages: Vec<(String, f64)>,
    round_trip: f64,
}

impl Sample {
    fn stage(&self, name: &str) -> f64 {
        self.stages.iter().find(|(stage, _)| stage == name).map_or(0.0, |&(_, milliseconds)| milliseconds)
    }

    /// Waiting for a turn is none of the work.
    fn outside(&self) -> f64 {
        self.stage("total") - self.stage("network") - self.stage("queue")
    }
}

pub(super) fn run(args: &HttpArgs) -> anyhow::Result<Outcome> {
    let settings = args.detector.settings()?;
    let file = read(&args.image).with_context(|| args.image.display().to_string())?;
    let samples = Samples::decode(&file, Channel::First).with_context(|| args.image.display().to_string())?;
    let size = samples.size();

    let engine = Engine::start(settings.options)?;
    let listen = Listen { port: 0, ..Listen::default() };
    let server = Server::start(HttpOptions { listen, ..HttpOptions::default() })?;
    server.attach(&engine);
    let this = format!("http://{}", server.address());

    let json = format!("{{\"image\":\"{}\"}}", base64_simd::STANDARD.encode_to_string(&file)).into_bytes();
    let plane = format!("/predict_plane?height={}&width={}", size.height, size.width);
    let requests = [
        ("/predict", "/predict".to_owned(), json),
        ("/predict_raw", "/predict_raw".to_owned(), file),
        ("/predict_plane", plane, samples.into_bytes()),
    ];
    let agent: ureq::Agent = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(60))).build().into();
    let mut reports = Vec::new();
    for (route, path, body) in &requests {
        let urls: Vec<String> = [Some(&this), args.against.as_ref()]
            .into_iter()
            .flatten()
            .map(|url| format!("{}{path}", url.trim_end_matches('/')))
            .collect();
        let mut taken: Vec<Vec<Sample>> = urls.iter().map(|_| Vec::new()).collect();
        for run in 0..args.runs + 3 {
            for (url, taken) in urls.iter().zip(&mut taken) {
                let sample = request(&agent, url, body)?;
                if run >= 3 {
                    taken.push(sample);
                }
            }
        }
        let mut servers = taken.iter().map(|samples| report(samples));
        let (Some(this), other) = (servers.next(), servers.next()) else { continue };
        let ratio_outside = other.as_ref().map(|other| this.outside_ms / other.outside_ms);
        reports.push(RouteReport { route, this, other, ratio_outside });
    }
    server.stop();
    if args.json {
        print(&format!("{}\n", serde_json::to_string(&reports)?))?;
    } else {
        print(&format!("{} ({size})\n", args.image.display()))?;
        reports.iter().try_for_each(print_report)?;
    }
    Ok(Outcome::Done)
}

fn request(agent: &ureq::Agent, url: &str, body: &[u8]) -> anyhow::Result<Sample> {
    let start = Instant::now();
    let mut reply = agent
        .post(url)
        .header("Content-Type", "application/octet-stream")
        .send(body)
        .with_context(|| url.to_owned())?;
    let mut answer = Vec::new();
    reply.body_mut().as_reader().read_to_end(&mut answer)?;
    let round_trip = start.elapsed().as_secs_f64() * 1e3;
    let header = reply.headers().get("server-timing").and_then(|value| value.to_str().ok());
    let Some(header) = header else { bail!("{url} sends no Server-Timing, so its parts cannot be compared") };
    let stages = header.split(", ").filter_map(|stage| {
        let (name, milliseconds) = stage.split_once(";dur=")?;
        Some((name.to_owned(), milliseconds.parse().ok()?))
    });
    Ok(Sample { stages: stages.collect(), round_trip })
}

fn report(samples: &[Sample]) -> ServerReport {
    let over = |value: &dyn Fn(&Sample) -> f64, share: usize| {
        let mut values: Vec<f64> = samples.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() * share / 100).copied().unwrap_or(f64::NAN)
    };
    let names = samples.first().map(|sample| &sample.stages[..]).unwrap_or_default();
    ServerReport {
        outside_ms: over(&Sample::outside, 50),
        outside_min_ms: over(&Sample::outside, 0),
        network_ms: over(&|sample| sample.stage("network"), 50),
        round_trip_ms: over(&|sample| sample.round_trip, 50),
        stages_ms: names.iter().map(|(name, _)| (name.clone(), over(&|sample| sample.stage(name), 50))).collect(),
    }
}

fn print_report(report: &RouteReport) -> anyhow::Result<()> {
    let line = |name: &str, server: &ServerReport| {
        let stages: Vec<String> = server.stages_ms.iter().map(|(stage, ms)| format!("{stage} {ms:.2}")).collect();
        format!(
            "  {name:<6} outside {:7.2} ms (min {:.2})   network {:7.2} ms   round trip {:7.2} ms   [{}]\n",
            server.outside_ms,
            server.outside_min_ms,
            server.network_ms,
            server.round_trip_ms,
            stages.join(", ")
        )
    };
    let mut text = format!("{}\n{}", report.route, line("this", &report.this));
    if let Some(other) = &report.other {
        text += &line("other", other);
    }
    if let Some(ratio) = report.ratio_outside {
        text += &format!("  outside the network: {ratio:.2} of the other's\n");
    }
    print(&text)
}
