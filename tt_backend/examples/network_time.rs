//! Time of the network alone, as one JSON object: `network_time [THREADS [RUNS [HxW]]]`.
//!
//! With `--dump FRAME OUT`, runs once on the little-endian f32 frame in FRAME instead and writes the scores followed by
//! the descriptors to OUT, for comparison with other implementations.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::Instant;

use tt_backend::{Size, cpu::Network, maps::Maps, weights::Weights};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let weights = Weights::bundled().unwrap();
    if args.first().is_some_and(|a| a == "--dump") {
        let bytes = std::fs::read(&args[1]).unwrap();
        let frame: Vec<f32> = bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        let size: Size = args.get(3).map_or(Size::NETWORK, |s| s.parse().unwrap());
        let mut maps = Maps::new(size);
        Network::new(&weights, size, 0)
            .unwrap()
            .forward(&frame, true, &mut maps);
        let out: Vec<u8> = maps
            .scores
            .iter()
            .chain(&maps.descriptors)
            .flat_map(|v| v.to_le_bytes())
            .collect();
        std::fs::write(&args[2], out).unwrap();
        return;
    }
    let threads: usize = args.first().map_or(0, |a| a.parse().unwrap());
    let runs: usize = args.get(1).map_or(10, |a| a.parse().unwrap());
    let size: Size = args.get(2).map_or(Size::NETWORK, |a| a.parse().unwrap());
    let frame: Vec<f32> = (0..size.height * size.width)
        .map(|i| (i * 7919 % 256) as f32 / 255.0)
        .collect();
    let mut network = Network::new(&weights, size, threads).unwrap();
    let mut maps = Maps::new(size);
    network.forward(&frame, true, &mut maps);
    let mut times: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            network.forward(&frame, true, &mut maps);
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    // The fastest run of each stage: what the code does when nothing else runs.
    let mut best = network.forward_profiled(&frame, true, &mut maps);
    for _ in 1..runs {
        for (best, stage) in best.iter_mut().zip(network.forward_profiled(&frame, true, &mut maps)) {
            if stage.time < best.time {
                *best = stage;
            }
        }
    }
    for stage in &best {
        let seconds = stage.time.as_secs_f64();
        eprintln!(
            "{:14} {:8.3} ms  {:7.1} GFLOP/s of products  {:7.1} GFLOP/s nominal",
            stage.name,
            seconds * 1e3,
            2e-9 * stage.product_macs as f64 / seconds,
            2e-9 * stage.nominal_macs as f64 / seconds
        );
    }
    eprintln!("sum of the fastest {:.3} ms", best.iter().map(|s| s.time.as_secs_f64() * 1e3).sum::<f64>());
    println!(
        "{{\"network_ms\": {{\"median\": {:.3}, \"min\": {:.3}}}, \"threads\": {threads}, \"size\": \"{size}\"}}",
        times[times.len() / 2],
        times[0]
    );
}
