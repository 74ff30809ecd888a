//! Time of the network alone: `network_time [--threads N] [--runs N] [--size HxW] [--layers | --dump FRAME OUT]`.
//!
//! Prints one JSON object; with `--layers` a table of the stages instead, with the rate of the multiply-adds that are
//! really done and of those that the layers are defined by. `--dump` runs once on the little-endian f32 frame in FRAME
//! and writes the scores followed by the descriptors to OUT, for comparison with other implementations.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::time::{Duration, Instant};

use tt_backend::cpu::{Network, StageProfile};
use tt_backend::{Size, maps::Maps, weights::Weights};

fn main() -> Result<(), Box<dyn Error>> {
    let (mut threads, mut runs, mut size, mut layers, mut dump) = (0, 10usize, Size::NETWORK, false, None);
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{flag} needs a value"));
        match flag.as_str() {
            "--threads" => threads = value()?.parse()?,
            "--runs" => runs = value()?.parse::<usize>()?.max(1),
            "--size" => size = value()?.parse()?,
            "--layers" => layers = true,
            "--dump" => dump = Some((value()?, value()?)),
            _ => return Err(format!("unknown argument {flag}").into()),
        }
    }
    let mut network = Network::new(&Weights::bundled()?, size, threads)?;
    let mut maps = Maps::new(size);
    if let Some((input, output)) = dump {
        let bytes = std::fs::read(input)?;
        let frame: Vec<f32> = bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
        network.forward(&frame, true, &mut maps);
        let out: Vec<u8> = maps.scores.iter().chain(&maps.descriptors).flat_map(|v| v.to_le_bytes()).collect();
        std::fs::write(output, out)?;
        return Ok(());
    }
    let frame: Vec<f32> = (0..size.height * size.width).map(|i| (i * 7919 % 256) as f32 / 255.0).collect();
    network.forward(&frame, true, &mut maps);
    if layers {
        let profiles: Vec<_> = (0..runs).map(|_| network.forward_profiled(&frame, true, &mut maps)).collect();
        print_layers(&profiles, &network);
        return Ok(());
    }
    let mut times: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            network.forward(&frame, true, &mut maps);
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!(
        r#"{{"network_ms": {{"median": {:.3}, "min": {:.3}}}, "threads": {}, "size": "{size}", "instructions": "{}"}}"#,
        times[times.len() / 2],
        times[0],
        network.threads(),
        network.instructions().name(),
    );
    Ok(())
}

/// The fastest run of each stage: what the code does when nothing else runs.
fn print_layers(profiles: &[Vec<StageProfile>], network: &Network) {
    println!("{}, {} thread(s), {}\n", network.size(), network.threads(), network.instructions().name());
    println!("| stage | ms | GFLOP/s done | GFLOP/s nominal |\n|---|---|---|---|");
    let row = |name: &str, time: Duration, product: u64, nominal: u64| {
        let rate = |macs: u64| 2e-9 * macs as f64 / time.as_secs_f64();
        let milliseconds = time.as_secs_f64() * 1e3;
        println!("| {name} | {milliseconds:.2} | {:.1} | {:.1} |", rate(product), rate(nominal));
    };
    let (mut total, mut products, mut nominals) = (Duration::ZERO, 0, 0);
    for (index, stage) in profiles.first().into_iter().flatten().enumerate() {
        let time = profiles.iter().map(|profile| profile[index].time).min().unwrap_or_default();
        row(stage.name, time, stage.product_macs, stage.nominal_macs);
        total += time;
        products += stage.product_macs;
        nominals += stage.nominal_macs;
    }
    row("sum", total, products, nominals);
}
