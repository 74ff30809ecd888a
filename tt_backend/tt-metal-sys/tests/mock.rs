//! What TT-NN, or the shim before it, refuses on a mock card. Needs TT-NN and `libttsp.so`, and so is left out of ordinary
//! runs: `TTSP_LIBRARY=... TT_METAL_SLOW_DISPATCH_MODE=1 cargo test -p tt-metal-sys --test mock -- --ignored --nocapture`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fmt::Debug;

use tt_metal_sys::{
    Compute, Conv2dOptions, DType, DeviceOptions, Error, Layout, Library, MaxPool2dOptions, Memory, Spec,
};

fn refused<T: Debug>(what: &str, result: Result<T, Error>) {
    let error = result.expect_err(what).to_string();
    println!("{what}: {}", error.lines().take(4).collect::<Vec<_>>().join(" "));
}

#[test]
#[ignore = "needs TT-NN and libttsp.so"]
fn a_mock_card_refuses_what_cannot_work() {
    let library = Library::load().unwrap();
    library.mock().unwrap();
    refused("no L1 for configuration", library.open(&DeviceOptions { l1_small_bytes: 0, ..DeviceOptions::default() }));
    let device = library.open(&DeviceOptions::default()).unwrap();
    let spec = |shape, layout| Spec { shape, dtype: DType::Bf16, layout, memory: Memory::Dram };
    let map = device.allocate(spec([1, 1, 64, 64], Layout::RowMajor)).unwrap();
    let tiles = device.allocate(spec([1, 1, 64, 64], Layout::Tile)).unwrap();
    let wide = device.allocate(spec([1, 1, 64, 96], Layout::Tile)).unwrap();
    let conv = Conv2dOptions {
        height: 8,
        width: 8,
        in_channels: 64,
        out_channels: 32,
        kernel: [3, 3],
        stride: [1, 1],
        padding: [1, 1],
        relu: true,
        dram_slices: 0,
        input_layout: Layout::RowMajor,
        input_memory: Memory::Dram,
        output_layout: Layout::Tile,
        output_memory: Memory::Dram,
        compute: Compute::HIFI2,
    };
    let (weights, bias) = (vec![0.5; 32 * 64 * 9], [0.0; 33]);
    let prepare = |options: &Conv2dOptions| device.prepare_conv2d(options, &weights, &bias[..32]);
    prepare(&conv).unwrap().run(&map).unwrap();
    refused("half the input channels", device.prepare_conv2d(&conv, &weights[..32 * 32 * 9], &bias[..32]));
    refused("a bias too long", device.prepare_conv2d(&conv, &weights, &bias));
    refused("another height", prepare(&Conv2dOptions { height: 9, ..conv }).and_then(|conv| conv.run(&map)));
    let large = Conv2dOptions { height: 1080, width: 1920, ..conv };
    refused(
        "a map larger than L1",
        prepare(&large).and_then(|conv| conv.run(&device.allocate(spec([1, 1, 1080 * 1920, 64], Layout::RowMajor))?)),
    );
    let pool = MaxPool2dOptions {
        height: 8,
        width: 8,
        channels: 64,
        kernel: [3, 1],
        stride: [1, 1],
        padding: [1, 0],
        dram_slices: 0,
        output_memory: Memory::Dram,
    };
    device.max_pool2d(&map, &pool).unwrap();
    refused("padding beyond half the window", device.max_pool2d(&map, &MaxPool2dOptions { padding: [2, 0], ..pool }));
    refused("a slice beyond the end", map.slice([0; 4], [1, 1, 64, 65]));
    refused("another volume", map.reshape([1, 1, 64, 65]));
    refused("eq of other shapes", device.eq(&tiles, &wide));
    refused("a tensor larger than DRAM", device.allocate(spec([1, 1, 1 << 20, 1 << 16], Layout::RowMajor)));
    refused("reading tiles", device.read(0, &tiles, &mut [0u16; 4096]));
    refused("a queue that was not opened", device.write(1, &map, &[0u16; 4096]));
}
