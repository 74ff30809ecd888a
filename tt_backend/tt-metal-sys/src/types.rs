//! Shapes, number formats and options.

use crate::abi;

/// Number format of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// The upper half of an IEEE 754 single.
    Bf16,
    /// 16-bit unsigned integers.
    U16,
    /// 32-bit unsigned integers.
    U32,
    /// IEEE 754 singles.
    F32,
}

impl DType {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::U16 => 2,
            Self::U32 | Self::F32 => 4,
        }
    }
}

/// Order of the elements in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Row by row; a page is a row.
    RowMajor,
    /// Tiles of 32 x 32 of the last two dimensions, which are filled up to whole tiles; a page is a tile.
    Tile,
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// Pages in turn over the banks of DRAM.
    Dram,
    /// Pages in turn over the cores' L1.
    L1,
    /// Cut over the cores' L1 as the operation that made it chose.
    L1Sharded,
}

/// All of a tensor but its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// Four dimensions, the outermost first.
    pub shape: [usize; 4],
    /// Number format.
    pub dtype: DType,
    /// Order of the elements in memory.
    pub layout: Layout,
    /// Where it lies.
    pub memory: Memory,
}

impl Spec {
    /// Number of elements, padding not counted.
    pub fn volume(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A type whose slices can be written to and read from a device.
///
/// Sealed: its values must be plain bytes.
pub trait Element: Copy + sealed::Sealed {
    /// Bytes of an element of the tensor.
    const BYTES: usize = size_of::<Self>();
}

impl Element for u16 {}
impl Element for u32 {}
impl Element for f32 {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u16 {}
    impl Sealed for u32 {}
    impl Sealed for f32 {}
}

/// Passes of the multiplier, which takes a few bits of each factor at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fidelity {
    /// One.
    LoFi = 1,
    /// Two.
    HiFi2 = 2,
    /// Three.
    HiFi3 = 3,
    /// Four: all bits of bf16.
    HiFi4 = 4,
}

/// How products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compute {
    /// Passes of the multiplier.
    pub fidelity: Fidelity,
    /// Sums in fp32, else in bf16.
    pub fp32_accumulation: bool,
}

impl Compute {
    /// Two passes, sums in fp32.
    pub const HIFI2: Self = Self { fidelity: Fidelity::HiFi2, fp32_accumulation: true };
    /// Four passes, sums in fp32.
    pub const HIFI4: Self = Self { fidelity: Fidelity::HiFi4, fp32_accumulation: true };
}

/// A convolution of one map, `[1, 1, height * width, in_channels]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dOptions {
    /// Rows of the input map.
    pub height: usize,
    /// Columns of the input map.
    pub width: usize,
    /// Channels of the input map.
    pub in_channels: usize,
    /// Channels of the output map.
    pub out_channels: usize,
    /// Rows and columns of the kernel.
    pub kernel: [usize; 2],
    /// Rows and columns from one output to the next.
    pub stride: [usize; 2],
    /// Zeros on either side, rows and columns.
    pub padding: [usize; 2],
    /// Whether negative outputs become zero.
    pub relu: bool,
    /// Horizontal slices that go through L1 one by one, from DRAM to DRAM; 0 for the whole map at once.
    pub dram_slices: usize,
    /// Layout of the input map.
    pub input_layout: Layout,
    /// Where the input map lies.
    pub input_memory: Memory,
    /// Layout of the output map.
    pub output_layout: Layout,
    /// Number format of the output map: [`DType::Bf16`] or [`DType::F32`].
    pub output_dtype: DType,
    /// [`Memory::Dram`], or [`Memory::L1Sharded`] for as the operation leaves it.
    pub output_memory: Memory,
    /// How products are computed.
    pub compute: Compute,
}

/// Maxima over windows of one map, `[1, 1, height * width, channels]`; padding never wins. The output is row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPool2dOptions {
    /// Rows of the input map.
    pub height: usize,
    /// Columns of the input map.
    pub width: usize,
    /// Channels.
    pub channels: usize,
    /// Rows and columns of the window.
    pub kernel: [usize; 2],
    /// Rows and columns from one output to the next.
    pub stride: [usize; 2],
    /// Padding on either side, rows and columns; at most half the window.
    pub padding: [usize; 2],
    /// As in [`Conv2dOptions`].
    pub dram_slices: usize,
    /// As in [`Conv2dOptions`].
    pub output_memory: Memory,
}

/// Cores that fetch commands and dispatch them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// A column of the worker cores.
    Worker,
    /// Idle Ethernet cores, which leaves all workers to operations, where TT-NN can do it for the card.
    Ethernet,
}

/// How to open a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Number of the card.
    pub device_id: u32,
    /// Hardware command queues, 1 or 2.
    pub queues: u32,
    /// Cores that dispatch commands.
    pub dispatch: Dispatch,
    /// L1 for configuration tensors of convolutions and pools, bytes per core.
    pub l1_small_bytes: u32,
    /// DRAM for traces, bytes.
    pub trace_region_bytes: u64,
}

impl Default for DeviceOptions {
    /// The first card, one queue, no traces.
    fn default() -> Self {
        Self { device_id: 0, queues: 1, dispatch: Dispatch::Worker, l1_small_bytes: 32 << 10, trace_region_bytes: 0 }
    }
}

/// Architecture of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// n150, n300.
    Wormhole,
    /// p100, p150, p300.
    Blackhole,
    /// Any other.
    Other,
}

/// What a device is and has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Architecture of the card.
    pub arch: Arch,
    /// Columns and rows of worker cores that operations may use.
    pub grid: [usize; 2],
    /// Whether there is no card behind it.
    pub mock: bool,
    /// L1 of a core, bytes.
    pub l1_bytes_per_core: u64,
    /// Programs in the cache: grows when an operation runs with options or shapes that are new.
    pub cached_programs: u64,
}

/// What a dry run would have used, at its peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Circular buffers, bytes per core.
    pub circular_buffers: u64,
    /// Tensors in L1, bytes per core.
    pub l1_buffers: u64,
    /// Both at the same time, bytes per core.
    pub l1_total: u64,
    /// Tensors in DRAM, bytes.
    pub dram_bytes: u64,
}

/// Sizes in the ABI have 32 bits; a larger one could not be allocated anyway and becomes one that is refused.
pub(crate) fn u32_of(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

impl DType {
    pub(crate) const fn to_abi(self) -> u32 {
        match self {
            Self::Bf16 => abi::BF16,
            Self::U16 => abi::U16,
            Self::U32 => abi::U32,
            Self::F32 => abi::F32,
        }
    }
}

impl Layout {
    pub(crate) const fn to_abi(self) -> u32 {
        match self {
            Self::RowMajor => abi::ROW_MAJOR,
            Self::Tile => abi::TILE,
        }
    }
}

impl Memory {
    pub(crate) const fn to_abi(self) -> u32 {
        match self {
            Self::Dram => abi::DRAM,
            Self::L1 => abi::L1,
            Self::L1Sharded => abi::L1_SHARDED,
        }
    }
}

impl Spec {
    pub(crate) fn to_abi(self) -> abi::Spec {
        abi::Spec {
            shape: self.shape.map(u32_of),
            dtype: self.dtype.to_abi(),
            layout: self.layout.to_abi(),
            memory: self.memory.to_abi(),
        }
    }

    /// `None` for values that this crate does not know.
    pub(crate) fn from_abi(spec: &abi::Spec) -> Option<Self> {
        Some(Self {
            shape: spec.shape.map(|size| size as usize),
            dtype: [DType::Bf16, DType::U16, DType::U32, DType::F32]
                .into_iter()
                .find(|dtype| dtype.to_abi() == spec.dtype)?,
            layout: [Layout::RowMajor, Layout::Tile].into_iter().find(|layout| layout.to_abi() == spec.layout)?,
            memory: [Memory::Dram, Memory::L1, Memory::L1Sharded]
                .into_iter()
                .find(|memory| memory.to_abi() == spec.memory)?,
        })
    }
}

impl Compute {
    pub(crate) fn to_abi(self) -> abi::Compute {
        abi::Compute { fidelity: self.fidelity as u32, fp32_accumulation: self.fp32_accumulation.into() }
    }
}

impl Conv2dOptions {
    pub(crate) fn to_abi(self) -> abi::Conv2dOptions {
        abi::Conv2dOptions {
            height: u32_of(self.height),
            width: u32_of(self.width),
            in_channels: u32_of(self.in_channels),
            out_channels: u32_of(self.out_channels),
            kernel: self.kernel.map(u32_of),
            stride: self.stride.map(u32_of),
            padding: self.padding.map(u32_of),
            relu: self.relu.into(),
            dram_slices: u32_of(self.dram_slices),
            input_layout: self.input_layout.to_abi(),
            input_memory: self.input_memory.to_abi(),
            output_layout: self.output_layout.to_abi(),
            output_dtype: self.output_dtype.to_abi(),
            output_memory: self.output_memory.to_abi(),
            compute: self.compute.to_abi(),
        }
    }
}

impl MaxPool2dOptions {
    pub(crate) fn to_abi(self) -> abi::MaxPool2dOptions {
        abi::MaxPool2dOptions {
            height: u32_of(self.height),
            width: u32_of(self.width),
            channels: u32_of(self.channels),
            kernel: self.kernel.map(u32_of),
            stride: self.stride.map(u32_of),
            padding: self.padding.map(u32_of),
            dram_slices: u32_of(self.dram_slices),
            output_memory: self.output_memory.to_abi(),
        }
    }
}

impl DeviceOptions {
    pub(crate) fn to_abi(self) -> abi::DeviceOptions {
        abi::DeviceOptions {
            device_id: self.device_id,
            queues: self.queues,
            dispatch: match self.dispatch {
                Dispatch::Worker => abi::DISPATCH_WORKER,
                Dispatch::Ethernet => abi::DISPATCH_ETHERNET,
            },
            l1_small_bytes: self.l1_small_bytes,
            trace_region_bytes: self.trace_region_bytes,
        }
    }
}

impl DeviceInfo {
    pub(crate) fn from_abi(info: &abi::DeviceInfo) -> Self {
        Self {
            arch: match info.arch {
                abi::ARCH_WORMHOLE => Arch::Wormhole,
                abi::ARCH_BLACKHOLE => Arch::Blackhole,
                _ => Arch::Other,
            },
            grid: [info.grid_columns as usize, info.grid_rows as usize],
            mock: info.mock != 0,
            l1_bytes_per_core: info.l1_bytes_per_core,
            cached_programs: info.cached_programs,
        }
    }
}

impl Usage {
    pub(crate) fn from_abi(usage: &abi::Usage) -> Self {
        Self {
            circular_buffers: usage.circular_buffers,
            l1_buffers: usage.l1_buffers,
            l1_total: usage.l1_total,
            dram_bytes: usage.dram_bytes,
        }
    }
}
