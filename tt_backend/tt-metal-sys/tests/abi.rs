//! The Rust side of the ABI against a double in C, compiled here: versions, errors, options field by field, and leaks.
#![allow(clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;

use tt_metal_sys::{
    Arch, Compute, Conv2dOptions, DType, DeviceOptions, Dispatch, Error, Fidelity, Layout, Library, LoadError,
    MaxPool2dOptions, Memory, Spec, Usage,
};

/// Compiles the double, with definitions, into `folder`.
fn double(folder: &Path, definitions: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = folder.join("libttsp.so");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(compiler)
        .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-std=gnu11", "-I"])
        .arg(source.join("shim"))
        .args(definitions)
        .arg(source.join("tests/double/ttsp_double.c"))
        .arg("-o")
        .arg(&library)
        .status()
        .expect("a C compiler");
    assert!(status.success());
    library
}

/// How many devices and handles the double has that were not given back.
fn alive(path: &Path) -> (i32, i32) {
    // SAFETY: the double, which has these two functions; it is loaded already, so this is the same copy.
    unsafe {
        let library = libloading::Library::new(path).unwrap();
        let count = |name: &[u8]| library.get::<unsafe extern "C" fn() -> i32>(name).unwrap()();
        (count(b"double_alive_devices\0"), count(b"double_alive_handles\0"))
    }
}

fn spec(shape: [usize; 4]) -> Spec {
    Spec { shape, dtype: DType::Bf16, layout: Layout::RowMajor, memory: Memory::Dram }
}

/// What the double compares with.
const POOL: MaxPool2dOptions = MaxPool2dOptions {
    height: 31,
    width: 32,
    channels: 33,
    kernel: [34, 35],
    stride: [36, 37],
    padding: [38, 39],
    dram_slices: 40,
    output_memory: Memory::L1,
};

#[test]
fn what_is_no_library_of_this_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("libttsp.so");
    let error = Library::load_from(&nowhere).unwrap_err();
    assert!(matches!(&error, LoadError::Open { path, .. } if *path == nowhere), "{error}");

    let error = Library::load_from(&double(folder.path(), &["-DDOUBLE_VERSION=9"])).unwrap_err();
    assert!(matches!(error, LoadError::Version { found: 9, expected: 1, .. }), "{error}");
    assert!(error.to_string().contains("version 9") && error.to_string().contains("version 1"), "{error}");

    let other = tempfile::tempdir().unwrap();
    let error = Library::load_from(&double(other.path(), &["-DDOUBLE_INCOMPLETE"])).unwrap_err();
    assert!(matches!(&error, LoadError::Symbol { reason, .. } if reason.contains("ttsp_mock")), "{error}");
}

#[test]
fn every_function_is_called_as_it_is_meant_and_nothing_leaks() {
    let folder = tempfile::tempdir().unwrap();
    let path = double(folder.path(), &[]);
    let library = Library::load_from(&path).unwrap();
    assert_eq!((library.ttnn_version().as_str(), library.path()), ("double", path.as_path()));
    library.mock().unwrap();
    let missing = library.open(&DeviceOptions { device_id: 3, ..DeviceOptions::default() }).unwrap_err();
    let reason = "No chips detected in the cluster".to_owned();
    assert_eq!(missing, Error { operation: "open device", reason });

    let options = DeviceOptions {
        device_id: 5,
        queues: 2,
        dispatch: Dispatch::Ethernet,
        l1_small_bytes: 6,
        trace_region_bytes: 12_345_678_901,
    };
    let device = library.open(&options).unwrap();
    let a = device.allocate(spec([1, 1, 2, 3])).unwrap();
    assert_eq!(a.spec(), spec([1, 1, 2, 3]));
    device.write(1, &a, &[1u16, 2, 3, 4, 5, 6]).unwrap();
    assert!(device.write(0, &a, &[1u16]).is_err());
    assert!(device.write(2, &a, &[1u16, 2, 3, 4, 5, 6]).is_err());
    let mut values = [0u16; 6];
    assert!(device.read(0, &a, &mut values).is_err(), "written on queue 1");
    device.read(1, &a, &mut values).unwrap();
    assert_eq!(values, [1, 2, 3, 4, 5, 6]);
    assert_eq!(device.values(&a).unwrap(), [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]);
    assert!(device.constant(spec([1, 1, 2, 3]), &[0.0; 6]).is_ok());
    assert!(device.constant(spec([1, 1, 2, 3]), &[0.0; 5]).is_err());
    assert_eq!(device.allocate(spec([99, 1, 1, 1])).unwrap_err().reason, "no room");
    let odd = device.allocate(spec([98, 1, 1, 1])).unwrap_err();
    assert!(odd.reason.contains("unknown kind"), "{odd}");

    let info = device.info().unwrap();
    assert_eq!((info.arch, info.grid, info.mock), (Arch::Blackhole, [11, 10], true));
    assert_eq!((info.l1_bytes_per_core, info.cached_programs), (12_345_678_901, 7));

    let event = device.record_event(1).unwrap();
    device.wait_for_event(0, &event).unwrap();
    assert!(device.wait_for_event(1, &event).is_err());

    let (trace, shape) = device
        .record_trace(|| {
            assert_eq!(device.synchronize().unwrap_err().reason, "recording");
            Ok::<_, Error>(a.reshape([1, 1, 3, 2])?.spec().shape)
        })
        .unwrap();
    assert_eq!(shape, [1, 1, 3, 2]);
    device.synchronize().unwrap();
    trace.replay().unwrap();
    trace.replay().unwrap();
    assert_eq!(trace.replay().unwrap_err().reason, "device lost");
    let failed = device.record_trace(|| Err::<(), _>(Error { operation: "work", reason: "its own".into() }));
    assert_eq!(failed.unwrap_err().operation, "work");
    device.synchronize().expect("the failed trace was ended");
    let panicking = AssertUnwindSafe(|| device.record_trace(|| -> Result<(), Error> { panic!("on purpose") }));
    assert!(catch_unwind(panicking).is_err());
    device.synchronize().expect("that one too");
    let (usage, ()) = device.dry_run(|| Ok::<_, Error>(())).unwrap();
    assert_eq!(usage, Usage { circular_buffers: 1, l1_buffers: 2, l1_total: 3, dram_bytes: 4 });

    let options = Conv2dOptions {
        height: 21,
        width: 22,
        in_channels: 2,
        out_channels: 3,
        kernel: [23, 24],
        stride: [25, 26],
        padding: [27, 28],
        relu: true,
        dram_slices: 29,
        input_layout: Layout::Tile,
        input_memory: Memory::L1,
        output_layout: Layout::RowMajor,
        output_dtype: DType::F32,
        output_memory: Memory::L1Sharded,
        compute: Compute::HIFI2,
    };
    assert!(device.prepare_conv2d(&options, &[1.5; 5], &[2.5; 3]).is_err());
    let conv = device.prepare_conv2d(&options, &[1.5; 6], &[2.5; 3]).unwrap();
    assert_eq!(conv.run(&a).unwrap().spec().shape, [1, 1, 1, 3]);
    assert!(device.max_pool2d(&a, &POOL).is_ok());
    assert!(device.max_pool2d(&a, &MaxPool2dOptions { kernel: [35, 34], ..POOL }).is_err());
    let factor = device.allocate(spec([1, 1, 3, 4])).unwrap();
    let product = device.matmul(&a, &factor, Compute::HIFI4, DType::F32).unwrap().spec();
    assert_eq!((product.shape, product.dtype), ([1, 1, 2, 4], DType::F32));
    drop(factor);
    let three = Compute { fidelity: Fidelity::HiFi3, fp32_accumulation: false };
    assert!(device.softmax(&a, three).is_ok());
    let gamma = device.allocate(spec([1, 1, 1, 3])).unwrap();
    let one = Compute { fidelity: Fidelity::LoFi, fp32_accumulation: false };
    assert!(device.rms_norm(&a, &gamma, 0.5, one).is_ok());
    drop(gamma);
    assert!(device.eq(&a, &a).is_ok() && device.multiply(&a, &a).is_ok() && device.add(&a, &a).is_ok());
    let wide = a.typecast(DType::F32).unwrap();
    assert_eq!((wide.spec().shape, wide.spec().dtype), ([1, 1, 2, 3], DType::F32));
    device.write(0, &wide, &[0.5f32; 6]).unwrap();
    let mut singles = [0.0f32; 6];
    device.read(0, &wide, &mut singles).unwrap();
    assert_eq!(singles, [0.5; 6]);
    assert!(device.add(&a, &wide).is_err());
    assert!(wide.add_scalar(0.5).is_ok() && wide.add_scalar(0.25).is_err() && wide.floor().is_ok());
    let (best, indices) = device.topk(&a, 2).unwrap();
    assert_eq!((best.spec().shape, indices.spec().dtype), ([1, 1, 2, 2], DType::U16));
    let gathered = device.gather(&wide, &indices).unwrap().spec();
    assert_eq!((gathered.shape, gathered.dtype), ([1, 1, 2, 2], DType::F32));
    assert_eq!(device.embedding(&indices, &a).unwrap().spec().shape, [1, 1, 2, 3]);
    let four = device.allocate(spec([6, 7, 8, 9])).unwrap();
    assert_eq!(four.slice([1, 2, 3, 4], [6, 6, 6, 6]).unwrap().spec().shape, [5, 4, 3, 2]);
    assert_eq!(four.permute([3, 1, 0, 2]).unwrap().spec().shape, [9, 7, 6, 8]);
    for order in [[0, 1, 2, 2], [0, 1, 2, 4]] {
        assert!(four.permute(order).unwrap_err().reason.contains("is not an order"));
    }
    assert_eq!(four.reshape([9, 8, 7, 6]).unwrap().spec().shape, [9, 8, 7, 6]);
    drop(four);
    assert_eq!(a.to_layout(Layout::Tile).unwrap().spec().layout, Layout::Tile);
    assert_eq!(a.to_memory(Memory::L1).unwrap().spec().memory, Memory::L1);
    assert!(a.to_memory(Memory::L1Sharded).is_err());
    let b = device.allocate(spec([1, 1, 3, 2])).unwrap();
    device.copy(&a, &b).unwrap();
    device.read(0, &b, &mut values).unwrap();
    assert_eq!(values, [1, 2, 3, 4, 5, 6]);

    // The device outlives every handle, whatever the order in which they go.
    drop(device);
    assert_eq!(alive(&path), (1, 8), "a, wide, b, event, trace, conv, best and indices");
    drop((a, wide, event, trace, conv, best, indices));
    assert_eq!(alive(&path), (1, 1));
    drop(b);
    assert_eq!(alive(&path), (0, 0));
}

/// Whatever belongs to a device dies with it.
#[test]
fn operands_of_another_device_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let library = Library::load_from(&double(folder.path(), &[])).unwrap();
    let (first, second) =
        (library.open(&DeviceOptions::default()).unwrap(), library.open(&DeviceOptions::default()).unwrap());
    let (a, b) = (first.allocate(spec([1, 1, 2, 2])).unwrap(), second.allocate(spec([1, 1, 2, 2])).unwrap());
    let event = first.record_event(1).unwrap();
    assert!(second.add(&b, &b).is_ok());
    let refused = |result: Result<(), Error>| {
        let error = result.unwrap_err();
        assert!(error.reason.contains("another device"), "{error}");
    };
    refused(second.wait_for_event(0, &event));
    refused(second.write(0, &a, &[0u16; 4]));
    refused(second.read(0, &a, &mut [0u16; 4]));
    refused(second.softmax(&a, Compute::HIFI4).map(drop));
    for (x, y) in [(&a, &b), (&b, &a)] {
        refused(second.add(x, y).map(drop));
        refused(second.eq(x, y).map(drop));
        refused(second.multiply(x, y).map(drop));
        refused(second.matmul(x, y, Compute::HIFI4, DType::Bf16).map(drop));
        refused(second.rms_norm(x, y, 0.5, Compute::HIFI4).map(drop));
        refused(second.gather(x, y).map(drop));
        refused(second.embedding(x, y).map(drop));
        refused(second.copy(x, y));
    }
    refused(second.max_pool2d(&a, &POOL).map(drop));
    refused(second.topk(&a, 2).map(drop));
    drop((a, b, event));
}
