//! Operations of TT-NN, Tenstorrent's library of neural network operations, from Rust.
//!
//! Two layers: [`abi`] is the C ABI of `shim/ttsp.h`, function by function; the rest of the crate is a safe interface to
//! it. The library behind the ABI, `libttsp.so`, is built from `shim/` against an installed TT-NN and loaded at run time,
//! so that this crate and everything above it builds and starts on machines without either.
//!
//! ```no_run
//! use tt_metal_sys::{Compute, DType, DeviceOptions, Layout, Library, Memory, Spec};
//!
//! let device = Library::load()?.open(&DeviceOptions::default())?;
//! let spec = Spec { shape: [1, 1, 32, 32], dtype: DType::Bf16, layout: Layout::Tile, memory: Memory::Dram };
//! let a = device.constant(spec, &[1.0; 1024])?;
//! let product = device.matmul(&a, &a, Compute::HIFI4, DType::Bf16)?.to_layout(Layout::RowMajor)?;
//! let mut values = [0u16; 1024];
//! device.read(0, &product, &mut values)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Handles belong to a device and keep it open: it is closed when the last of them is dropped. TT-NN wants a device used
//! by one thread at a time, and handles share it, so none of them is `Send`: open the device on the thread that uses it.
//! [`Library`] may be shared between threads.

// The point of this crate is FFI.
#![allow(unsafe_code)]

#[allow(missing_docs, reason = "documented in shim/ttsp.h, whose names these are")]
pub mod abi;
mod device;
mod error;
mod library;
mod operations;
mod types;

pub use device::{Device, Event, Tensor, Trace};
pub use error::{Error, LoadError};
pub use library::{LIBRARY_VARIABLE, Library};
pub use operations::Conv2d;
pub use types::{
    Arch, Compute, Conv2dOptions, DType, DeviceInfo, DeviceOptions, Dispatch, Element, Fidelity, Layout,
    MaxPool2dOptions, Memory, Spec, Usage,
};
