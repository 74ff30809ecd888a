//! What TT-NN accepts, and what it ought to refuse.
//!
//! Sources: the `validate` functions of tt-metal 0.69. Where "ours alone" is said, TT-NN is known to take more; it may do so
//! elsewhere.

use tt_metal_sys::{Conv2dOptions, DType, Layout, MaxPool2dOptions, Memory, Spec};

use super::refuse;
use crate::p150::device::Result;

/// Side of a tile.
const TILE: usize = 32;
/// Bytes of L1 that the cores of a p150 have for tensors together: 11 x 10 banks.
const L1_BYTES: usize = 110 * 1_428_992;

fn check(operation: &'static str, holds: bool, reason: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(refuse(operation, reason())) }
}

/// Numbers, not integers.
fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::Bf16 | DType::F32)
}

pub(super) fn in_tiles(operation: &'static str, spec: Spec) -> Result<()> {
    let holds = spec.layout == Layout::Tile && is_float(spec.dtype);
    check(operation, holds, || format!("{spec:?} is not bf16 or fp32 in tiles"))
}

fn bf16_in_tiles(operation: &'static str, spec: Spec) -> Result<()> {
    let holds = spec.layout == Layout::Tile && spec.dtype == DType::Bf16;
    check(operation, holds, || format!("{spec:?} is not bf16 in tiles"))
}

/// Transfers are plain copies of row-major tensors.
pub(super) fn host_access(operation: &'static str, spec: Spec, bytes: usize) -> Result<()> {
    check(operation, spec.layout == Layout::RowMajor, || format!("{spec:?} is not row-major"))?;
    let due = spec.volume() * spec.dtype.bytes();
    check(operation, bytes == due, || format!("{bytes} bytes for a tensor of {due}"))
}

/// A window that fits on its map; TT-NN divides by the steps without a look.
fn window(
    operation: &'static str,
    map: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    pad: [usize; 2],
) -> Result<()> {
    let fits = (0..2).all(|i| stride[i] > 0 && kernel[i] > 0 && map[i] > 0 && kernel[i] <= map[i] + 2 * pad[i]);
    check(operation, fits, || format!("a window of {kernel:?} in steps of {stride:?} on a map of {map:?}"))
}

/// Ours alone: TT-NN takes weights of another input width.
pub(super) fn conv2d_weights(options: &Conv2dOptions, weights: usize, biases: usize) -> Result<()> {
    let Conv2dOptions { height, width, in_channels, out_channels, kernel, stride, padding, .. } = *options;
    window("prepare conv2d", [height, width], kernel, stride, padding)?;
    check("prepare conv2d", in_channels * out_channels > 0, || format!("{in_channels} to {out_channels} channels"))?;
    let due = out_channels * in_channels * kernel[0] * kernel[1];
    check("prepare conv2d", weights == due && biases == out_channels, || {
        format!("{weights} weights and {biases} biases for {out_channels} x {in_channels} x {kernel:?}")
    })
}

fn map(
    operation: &'static str,
    spec: Spec,
    [height, width, channels]: [usize; 3],
    dram_slices: usize,
    output: Spec,
) -> Result<Spec> {
    let due = [1, 1, height * width, channels];
    check(operation, spec.dtype == DType::Bf16 && spec.shape == due, || format!("{spec:?}, but {due:?} is due"))?;
    if dram_slices > 0 {
        let dram = spec.memory == Memory::Dram && output.memory == Memory::Dram;
        check(operation, dram, || format!("slices go from DRAM to DRAM, not from {spec:?} to {output:?}"))?;
        check(operation, dram_slices <= height, || format!("{dram_slices} slices of {height} rows"))?;
    } else {
        // Input and output are in L1 at the same time, whether they start or stay there or not, and beside them what the
        // kernels work on, which is as much again.
        let bytes = 2 * (spec.volume() * spec.dtype.bytes() + output.volume() * output.dtype.bytes());
        check(operation, bytes <= L1_BYTES, || format!("{bytes} bytes do not fit into L1: cut the map into slices"))?;
    }
    Ok(output)
}

pub(super) fn conv2d(options: &Conv2dOptions, input: Spec) -> Result<Spec> {
    let o = options;
    // Ours alone: TT-NN converts, which costs time, and prepares weights for another layout, which costs numbers.
    let as_prepared = input.layout == o.input_layout && input.memory == o.input_memory;
    check("conv2d", as_prepared, || format!("{input:?}, but the weights were prepared for {o:?}"))?;
    let side = |axis: usize, size: usize| (size + 2 * o.padding[axis] - o.kernel[axis]) / o.stride[axis] + 1;
    let output = Spec {
        shape: [1, 1, side(0, o.height) * side(1, o.width), o.out_channels],
        dtype: o.output_dtype,
        layout: o.output_layout,
        memory: o.output_memory,
    };
    map("conv2d", input, [o.height, o.width, o.in_channels], o.dram_slices, output)
}

pub(super) fn max_pool2d(options: &MaxPool2dOptions, input: Spec) -> Result<Spec> {
    let o = options;
    window("max_pool2d", [o.height, o.width], o.kernel, o.stride, o.padding)?;
    let padded = o.padding[0] <= o.kernel[0] / 2 && o.padding[1] <= o.kernel[1] / 2;
    check("max_pool2d", padded, || format!("padding {:?} is more than half of the window {:?}", o.padding, o.kernel))?;
    check("max_pool2d", o.channels.is_multiple_of(TILE), || format!("{} channels are not whole tiles", o.channels))?;
    let side = |axis: usize, size: usize| (size + 2 * o.padding[axis] - o.kernel[axis]) / o.stride[axis] + 1;
    let output = Spec {
        shape: [1, 1, side(0, o.height) * side(1, o.width), o.channels],
        dtype: DType::Bf16,
        layout: Layout::RowMajor,
        memory: o.output_memory,
    };
    map("max_pool2d", input, [o.height, o.width, o.channels], o.dram_slices, output)
}

pub(super) fn matmul(a: Spec, b: Spec, dtype: DType) -> Result<Spec> {
    // Ours alone: the matrix unit would cut fp32 to 11 bits without a word.
    bf16_in_tiles("matmul", a)?;
    bf16_in_tiles("matmul", b)?;
    check("matmul", is_float(dtype), || format!("a product in {dtype:?}"))?;
    let fits = a.shape[..2] == b.shape[..2] && a.shape[3] == b.shape[2];
    check("matmul", fits, || format!("{:?} x {:?}", a.shape, b.shape))?;
    Ok(Spec { shape: [a.shape[0], a.shape[1], a.shape[2], b.shape[3]], dtype, memory: Memory::Dram, ..a })
}

pub(super) fn rms_norm(input: Spec, gamma: Spec) -> Result<()> {
    bf16_in_tiles("rms_norm", input)?;
    bf16_in_tiles("rms_norm", gamma)?;
    check("rms_norm", input.memory == Memory::Dram, || format!("{input:?} is not in DRAM"))?;
    let due = [1, 1, 1, input.shape[3]];
    check("rms_norm", gamma.shape == due, || format!("gamma is {:?}, but {due:?} is due", gamma.shape))
}

pub(super) fn slice(input: Spec, begin: [usize; 4], end: [usize; 4]) -> Result<Spec> {
    let within = (0..4).all(|i| begin[i] < end[i] && end[i] <= input.shape[i]);
    check("slice", within, || format!("{begin:?} to {end:?} of {:?}", input.shape))?;
    let whole = input.layout == Layout::RowMajor || begin[2..].iter().all(|start| start.is_multiple_of(TILE));
    check("slice", whole, || format!("{begin:?} is not the start of a tile"))?;
    Ok(Spec { shape: std::array::from_fn(|i| end[i] - begin[i]), memory: Memory::Dram, ..input })
}

pub(super) fn reshape(input: Spec, shape: [usize; 4]) -> Result<Spec> {
    let output = Spec { shape, ..input };
    check("reshape", output.volume() == input.volume(), || format!("{:?} to {shape:?}", input.shape))?;
    // Ours alone: in tiles only what moves nothing.
    let view = input.shape[3] == shape[3] && [input.shape[2], shape[2]].iter().all(|rows| rows.is_multiple_of(TILE));
    let free = input.layout == Layout::RowMajor || view;
    check("reshape", free, || format!("{:?} to {shape:?} cuts through tiles", input.shape))?;
    // Ours alone: sharded tensors would be sharded anew.
    check("reshape", input.memory != Memory::L1Sharded, || format!("{input:?} is sharded"))?;
    Ok(output)
}

pub(super) fn permute(input: Spec, order: [usize; 4]) -> Result<Spec> {
    let all = (0..4).all(|dimension| order.contains(&dimension));
    check("permute", all, || format!("{order:?} is not an order of four dimensions"))?;
    // Ours alone: of tiles the graph only swaps the last two dimensions, which must be whole tiles.
    let [_, _, rows, columns] = input.shape;
    let holds = input.layout == Layout::RowMajor
        || (order == [0, 1, 3, 2] && rows.is_multiple_of(TILE) && columns.is_multiple_of(TILE));
    check("permute", holds, || format!("{input:?} is not row-major, and no transpose of whole tiles"))?;
    Ok(Spec { shape: order.map(|dimension| input.shape[dimension]), memory: Memory::Dram, ..input })
}

pub(super) fn elementwise(operation: &'static str, a: Spec, b: Spec) -> Result<Spec> {
    in_tiles(operation, a)?;
    in_tiles(operation, b)?;
    // Ours alone: TT-NN spreads the smaller one, and mixes formats, which the graph never means.
    let alike = a.shape == b.shape && a.dtype == b.dtype;
    check(operation, alike, || format!("{a:?} and {b:?}"))?;
    Ok(a)
}

pub(super) fn typecast(input: Spec, dtype: DType) -> Result<Spec> {
    check("typecast", is_float(input.dtype) && is_float(dtype), || format!("{input:?} to {dtype:?}"))?;
    let whole = input.layout == Layout::Tile || input.shape[3].is_multiple_of(TILE);
    check("typecast", whole, || format!("rows of {input:?} are not whole tiles"))?;
    Ok(Spec { dtype, ..input })
}

pub(super) fn topk(input: Spec, k: usize) -> Result<[Spec; 2]> {
    bf16_in_tiles("topk", input)?;
    let [a, b, rows, width] = input.shape;
    check("topk", (a * b * rows).is_multiple_of(TILE), || format!("{:?} is not whole rows of tiles", input.shape))?;
    check("topk", width >= k && width < 1 << 16 && k > 0, || format!("the best {k} of {width}"))?;
    let values = Spec { shape: [a, b, rows, k], memory: Memory::Dram, ..input };
    Ok([values, Spec { dtype: DType::U16, ..values }])
}

pub(super) fn gather(input: Spec, indices: Spec) -> Result<Spec> {
    in_tiles("gather", input)?;
    let are_indices = indices.layout == Layout::Tile && indices.dtype == DType::U16;
    check("gather", are_indices, || format!("{indices:?} are not 16-bit indices in tiles"))?;
    // Ours alone: TT-NN takes fewer rows of indices than the input has.
    check("gather", input.shape[..3] == indices.shape[..3], || format!("{indices:?} into {input:?}"))?;
    Ok(Spec { shape: indices.shape, memory: Memory::Dram, ..input })
}

pub(super) fn embedding(indices: Spec, table: Spec) -> Result<Spec> {
    let row_of_indices =
        indices.dtype == DType::U32 && indices.layout == Layout::RowMajor && indices.shape[..3] == [1; 3];
    check("embedding", row_of_indices, || format!("{indices:?} are not indices"))?;
    let is_table = table.dtype == DType::Bf16 && table.layout == Layout::RowMajor && table.shape[..2] == [1; 2];
    check("embedding", is_table, || format!("{table:?} is no table"))?;
    let (count, width) = (indices.shape[3], table.shape[3]);
    let whole = count.is_multiple_of(TILE) && width.is_multiple_of(TILE);
    check("embedding", whole, || format!("{count} rows of {width} are not whole tiles"))?;
    Ok(Spec { shape: [1, 1, count, width], layout: Layout::Tile, ..table })
}

pub(super) fn copy(from: Spec, to: Spec) -> Result<()> {
    check("copy", from == to, || format!("{from:?} onto {to:?}"))?;
    check("copy", from.dtype != DType::U16, || "16-bit integers cannot be copied".into())
}
