//! `ttsp.h` in Rust: types field by field, and the functions, looked up in a library that is loaded at run time.

use std::ffi::{c_char, c_int, c_void};

/// What this crate was written against; a library of another version is not used.
pub const ABI_VERSION: u32 = 1;

/// Status of a call that worked.
pub const OK: c_int = 0;

pub const BF16: u32 = 0;
pub const U16: u32 = 1;
pub const U32: u32 = 2;
pub const F32: u32 = 3;

pub const ROW_MAJOR: u32 = 0;
pub const TILE: u32 = 1;

pub const DRAM: u32 = 0;
pub const L1: u32 = 1;
pub const L1_SHARDED: u32 = 2;

pub const ARCH_WORMHOLE: u32 = 1;
pub const ARCH_BLACKHOLE: u32 = 2;

pub const DISPATCH_WORKER: u32 = 0;
pub const DISPATCH_ETHERNET: u32 = 1;

macro_rules! opaque {
    ($($name:ident),+) => {
        $(
            /// Only ever behind a pointer.
            #[repr(C)]
            #[derive(Debug)]
            pub struct $name {
                private: [u8; 0],
            }
        )+
    };
}
opaque!(Device, Tensor, Conv, Event, Trace);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceOptions {
    pub device_id: u32,
    pub queues: u32,
    pub dispatch: u32,
    pub l1_small_bytes: u32,
    pub trace_region_bytes: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceInfo {
    pub arch: u32,
    pub grid_columns: u32,
    pub grid_rows: u32,
    pub mock: u32,
    pub l1_bytes_per_core: u64,
    pub cached_programs: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Spec {
    pub shape: [u32; 4],
    pub dtype: u32,
    pub layout: u32,
    pub memory: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Compute {
    pub fidelity: u32,
    pub fp32_accumulation: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Conv2dOptions {
    pub height: u32,
    pub width: u32,
    pub in_channels: u32,
    pub out_channels: u32,
    pub kernel: [u32; 2],
    pub stride: [u32; 2],
    pub padding: [u32; 2],
    pub relu: u32,
    pub dram_slices: u32,
    pub input_layout: u32,
    pub input_memory: u32,
    pub output_layout: u32,
    pub output_dtype: u32,
    pub output_memory: u32,
    pub compute: Compute,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MaxPool2dOptions {
    pub height: u32,
    pub width: u32,
    pub channels: u32,
    pub kernel: [u32; 2],
    pub stride: [u32; 2],
    pub padding: [u32; 2],
    pub dram_slices: u32,
    pub output_memory: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub circular_buffers: u64,
    pub l1_buffers: u64,
    pub l1_total: u64,
    pub dram_bytes: u64,
}

macro_rules! functions {
    ($($symbol:ident as $name:ident($($argument:ty),*) $(-> $result:ty)?;)+) => {
        /// The functions of `ttsp.h`. What each of them asks for is said there.
        #[derive(Debug)]
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+
        }

        impl Functions {
            /// Looks all of them up.
            ///
            /// # Safety
            ///
            /// The library must be one whose functions have these signatures, and must outlive the result.
            ///
            /// # Errors
            ///
            /// When one is missing; the text names it.
            pub unsafe fn of(library: &libloading::Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $(
                        // SAFETY: the signature is the header's, which the caller vouches for.
                        $name: unsafe { *library.get(concat!(stringify!($symbol), "\0").as_bytes())? },
                    )+
                })
            }
        }
    };
}

functions! {
    ttsp_ttnn_version as ttnn_version() -> *const c_char;
    ttsp_last_error as last_error() -> *const c_char;
    ttsp_mock as mock() -> c_int;
    ttsp_device_open as device_open(*const DeviceOptions, *mut *mut Device) -> c_int;
    ttsp_device_close as device_close(*mut Device) -> c_int;
    ttsp_device_info_get as device_info_get(*mut Device, *mut DeviceInfo) -> c_int;
    ttsp_synchronize as synchronize(*mut Device) -> c_int;
    ttsp_tensor_allocate as tensor_allocate(*mut Device, *const Spec, *mut *mut Tensor) -> c_int;
    ttsp_tensor_constant as tensor_constant(*mut Device, *const Spec, *const f32, usize, *mut *mut Tensor) -> c_int;
    ttsp_tensor_spec as tensor_spec(*const Tensor, *mut Spec) -> c_int;
    ttsp_tensor_values as tensor_values(*const Tensor, *mut f32, usize) -> c_int;
    ttsp_tensor_free as tensor_free(*mut Tensor);
    ttsp_write as write(*mut Device, u32, *const Tensor, *const c_void, usize) -> c_int;
    ttsp_read as read(*mut Device, u32, *const Tensor, *mut c_void, usize) -> c_int;
    ttsp_event_record as event_record(*mut Device, u32, *mut *mut Event) -> c_int;
    ttsp_event_wait as event_wait(*mut Device, u32, *const Event) -> c_int;
    ttsp_event_free as event_free(*mut Event);
    ttsp_trace_begin as trace_begin(*mut Device, *mut *mut Trace) -> c_int;
    ttsp_trace_end as trace_end(*mut Trace) -> c_int;
    ttsp_trace_replay as trace_replay(*mut Trace) -> c_int;
    ttsp_trace_release as trace_release(*mut Trace) -> c_int;
    ttsp_dry_run_begin as dry_run_begin(*mut Device) -> c_int;
    ttsp_dry_run_end as dry_run_end(*mut Device, *mut Usage) -> c_int;
    ttsp_conv2d_prepare as conv2d_prepare(
        *mut Device, *const Conv2dOptions, *const f32, usize, *const f32, usize, *mut *mut Conv
    ) -> c_int;
    ttsp_conv2d_free as conv2d_free(*mut Conv);
    ttsp_conv2d as conv2d(*const Conv, *const Tensor, *mut *mut Tensor) -> c_int;
    ttsp_max_pool2d as max_pool2d(*const Tensor, *const MaxPool2dOptions, *mut *mut Tensor) -> c_int;
    ttsp_matmul as matmul(*const Tensor, *const Tensor, *const Compute, u32, *mut *mut Tensor) -> c_int;
    ttsp_softmax as softmax(*const Tensor, *const Compute, *mut *mut Tensor) -> c_int;
    ttsp_rms_norm as rms_norm(*const Tensor, *const Tensor, f32, *const Compute, *mut *mut Tensor) -> c_int;
    ttsp_slice as slice(*const Tensor, *const u32, *const u32, *mut *mut Tensor) -> c_int;
    ttsp_reshape as reshape(*const Tensor, *const u32, *mut *mut Tensor) -> c_int;
    ttsp_permute as permute(*const Tensor, *const u32, *mut *mut Tensor) -> c_int;
    ttsp_to_layout as to_layout(*const Tensor, u32, *mut *mut Tensor) -> c_int;
    ttsp_to_memory as to_memory(*const Tensor, u32, *mut *mut Tensor) -> c_int;
    ttsp_typecast as typecast(*const Tensor, u32, *mut *mut Tensor) -> c_int;
    ttsp_add as add(*const Tensor, *const Tensor, *mut *mut Tensor) -> c_int;
    ttsp_add_scalar as add_scalar(*const Tensor, f32, *mut *mut Tensor) -> c_int;
    ttsp_floor as floor(*const Tensor, *mut *mut Tensor) -> c_int;
    ttsp_eq as eq(*const Tensor, *const Tensor, *mut *mut Tensor) -> c_int;
    ttsp_multiply as multiply(*const Tensor, *const Tensor, *mut *mut Tensor) -> c_int;
    ttsp_topk as topk(*const Tensor, u32, *mut *mut Tensor, *mut *mut Tensor) -> c_int;
    ttsp_gather as gather(*const Tensor, *const Tensor, *mut *mut Tensor) -> c_int;
    ttsp_embedding as embedding(*const Tensor, *const Tensor, *mut *mut Tensor) -> c_int;
    ttsp_copy as copy(*const Tensor, *const Tensor) -> c_int;
}
