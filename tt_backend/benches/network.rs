//! On the CPU: `network/<case>/<size>` for whole frames, `stage/<layers>/<size>` for their parts, and
//! `postprocess/<case>/<size>` for what makes keypoints of the network's maps.
#![allow(missing_docs)]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tt_backend::{
    Detections, Params, Postprocess, Size, cpu::Network, keypoints::Extractor, maps::Maps, weights::Weights,
};

const SIZES: [Size; 4] = [Size::new(240, 320), Size::NETWORK, Size::new(720, 960), Size::new(960, 1280)];

fn frame(size: Size) -> Vec<f32> {
    (0..size.height * size.width).map(|i| (i * 7919 % 256) as f32 / 255.0).collect()
}

fn frames(criterion: &mut Criterion) {
    let weights = Weights::bundled().expect("bundled weights");
    let mut group = criterion.benchmark_group("network");
    group.sample_size(10).warm_up_time(Duration::from_secs(1));
    for size in SIZES {
        let frame = frame(size);
        group.throughput(Throughput::Elements((size.height * size.width) as u64));
        for (case, threads, descriptors) in [("all_cores", 0, true), ("one_thread", 1, true), ("scores_only", 0, false)]
        {
            let mut network = Network::new(&weights, size, threads).expect("network");
            let mut maps = Maps::new(size);
            group.bench_function(BenchmarkId::new(case, size), |bencher| {
                bencher.iter(|| network.forward(black_box(&frame), descriptors, &mut maps));
            });
        }
    }
    group.finish();
}

/// One thread, at the network's size; the time of one stage out of whole frames, so that its caches are in their usual
/// state.
fn stages(criterion: &mut Criterion) {
    let weights = Weights::bundled().expect("bundled weights");
    let (size, mut maps) = (Size::NETWORK, Maps::new(Size::NETWORK));
    let frame = frame(size);
    let mut network = Network::new(&weights, size, 1).expect("network");
    let names: Vec<_> = network.forward_profiled(&frame, true, &mut maps).iter().map(|stage| stage.name).collect();
    let mut group = criterion.benchmark_group("stage");
    group.sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(3));
    for (index, name) in names.into_iter().enumerate() {
        group.bench_function(BenchmarkId::new(name, size), |bencher| {
            bencher.iter_custom(|frames| {
                (0..frames).map(|_| network.forward_profiled(black_box(&frame), true, &mut maps)[index].time).sum()
            });
        });
    }
    group.finish();
}

/// From maps to 1024 keypoints.
fn postprocess(criterion: &mut Criterion) {
    let weights = Weights::bundled().expect("bundled weights");
    let mut group = criterion.benchmark_group("postprocess");
    for size in SIZES {
        let mut maps = Maps::new(size);
        let mut network = Network::new(&weights, size, 0).expect("network");
        network.forward(&frame(size), true, &mut maps);
        // The frame has few corners; with every maximum a candidate there are enough.
        let package = Params { keypoint_threshold: 0.0, ..Params::default() };
        let cases = [
            ("package", package.clone()),
            ("upstream", Params { postprocess: Postprocess::Upstream, ..package.clone() }),
            ("without_descriptors", Params { return_descriptors: false, ..package }),
        ];
        for (case, params) in cases {
            let (mut extractor, mut out) = (Extractor::default(), Detections::default());
            group.bench_function(BenchmarkId::new(case, size), |bencher| {
                bencher.iter(|| extractor.extract(black_box(&maps), &params, network.team(), &mut out));
                assert_eq!(out.len(), 1024);
            });
        }
    }
    group.finish();
}

criterion_group!(benches, frames, stages, postprocess);
criterion_main!(benches);
