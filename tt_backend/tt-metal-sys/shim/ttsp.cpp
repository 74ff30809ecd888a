// ttsp.h over TT-NN. One function a function: arguments are checked where TT-NN is lax, converted, and handed on.
//
// Names that moved between versions of TT-NN (`Tensor`, `copy_to_device`, `create_device_tensor` went from `tt::tt_metal` to
// `ttnn`) are found through both `using namespace` lines; that is what they are for.
//
// SPDX-License-Identifier: Apache-2.0

#include "ttsp.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tt-metalium/bfloat16.hpp>
#include <tt-metalium/experimental/mock_device.hpp>
#include <tt-metalium/graph_tracking.hpp>
#include <tt-metalium/mesh_command_queue.hpp>
#include <tt-metalium/mesh_device.hpp>
#include <ttnn/events.hpp>
#include <ttnn/graph/graph_processor.hpp>
#include <ttnn/graph/graph_trace_utils.hpp>
#include <ttnn/operations/conv/conv2d/conv2d.hpp>
#include <ttnn/operations/conv/conv2d/prepare_conv2d_weights.hpp>
#include <ttnn/operations/core/to_layout/to_layout_op.hpp>
#include <ttnn/operations/core/to_memory_config/to_memory_config_op.hpp>
#include <ttnn/operations/copy/typecast/typecast.hpp>
#include <ttnn/operations/data_movement/copy/copy.hpp>
#include <ttnn/operations/data_movement/gather/gather.hpp>
#include <ttnn/operations/data_movement/permute/permute.hpp>
#include <ttnn/operations/data_movement/reshape_view/reshape.hpp>
#include <ttnn/operations/data_movement/slice/slice.hpp>
#include <ttnn/operations/eltwise/binary/binary.hpp>
#include <ttnn/operations/eltwise/unary/unary.hpp>
#include <ttnn/operations/embedding/embedding.hpp>
#include <ttnn/operations/matmul/matmul.hpp>
#include <ttnn/operations/normalization/rmsnorm/rmsnorm.hpp>
#include <ttnn/operations/normalization/softmax/softmax.hpp>
#include <ttnn/operations/pool/generic/generic_pools.hpp>
#include <ttnn/operations/reduction/topk/topk.hpp>
#include <ttnn/operations/trace.hpp>
#include <ttnn/tensor/tensor.hpp>
#include <ttnn/tensor/tensor_ops.hpp>

#ifndef TTSP_TTNN_VERSION
#define TTSP_TTNN_VERSION "unknown"
#endif

using namespace tt::tt_metal;
using namespace ttnn;
namespace mesh = tt::tt_metal::distributed;
using mesh::MeshDevice;
using SliceConfig = ttnn::operations::op_slicing::Op2DSliceConfig;
using Compute = ttnn::DeviceComputeKernelConfig;

struct ttsp_device {
    std::shared_ptr<MeshDevice> mesh;
    uint32_t queues = 1;
};

struct ttsp_tensor {
    ttnn::Tensor tensor;
};

struct ttsp_conv {
    MeshDevice* device;
    ttsp_conv2d_options options;
    ttnn::Tensor weights;
    ttnn::Tensor bias;
};

struct ttsp_event {
    mesh::MeshEvent event;
};

struct ttsp_trace {
    MeshDevice* device;
    mesh::MeshTraceId id;
};

namespace {

thread_local std::string last_error;

/// What TT-NN says, without the place in its source before it and the C++ stack after it.
void remember_or_throw(const char* text) {
    last_error = text;
    if (const auto stack = last_error.find("\nbacktrace:"); stack != std::string::npos) {
        last_error.resize(stack);
    }
    constexpr std::string_view mark = "info:\n";
    if (const auto info = last_error.find(mark); info != std::string::npos) {
        last_error.erase(0, info + mark.size());
    }
    if (last_error.starts_with("Out of Memory")) {
        last_error.insert(0, "the tensors do not fit into the card's memory: ");
    }
}

/// As `remember_or_throw`, where nothing may be thrown.
void remember(const char* text) noexcept {
    try {
        remember_or_throw(text);
    } catch (...) {
        // Short enough for std::string to keep it without asking for memory.
        last_error = "no memory left";
    }
}

[[noreturn]] void refuse(const std::string& text) { throw std::invalid_argument(text); }

/// Runs `work`; whatever it throws becomes the last error.
template <typename Work>
int guarded(Work&& work) noexcept {
    try {
        work();
        return TTSP_OK;
    } catch (const std::exception& error) {
        remember(error.what());
    } catch (...) {
        remember("an exception that is not a std::exception");
    }
    return TTSP_ERROR;
}

/// As `guarded`, for operations with one result.
template <typename Work>
int one_result(ttsp_tensor** out, Work&& work) noexcept {
    return guarded([&] { *out = new ttsp_tensor{work()}; });
}

Shape shape_of(const uint32_t dims[4]) { return Shape({dims[0], dims[1], dims[2], dims[3]}); }

std::string text(const uint32_t dims[4]) {
    return "[" + std::to_string(dims[0]) + ", " + std::to_string(dims[1]) + ", " + std::to_string(dims[2]) + ", " +
           std::to_string(dims[3]) + "]";
}

/// How many elements a tensor has; refused where that cannot be counted.
uint64_t volume(const uint32_t dims[4]) {
    uint64_t elements = 1;
    for (int axis = 0; axis < 4; ++axis) {
        if (__builtin_mul_overflow(elements, uint64_t{dims[axis]}, &elements)) {
            refuse(text(dims) + " has more elements than can be counted");
        }
    }
    return elements;
}

DataType dtype_of(uint32_t dtype) {
    switch (dtype) {
        case TTSP_BF16: return DataType::BFLOAT16;
        case TTSP_U16: return DataType::UINT16;
        case TTSP_U32: return DataType::UINT32;
        case TTSP_F32: return DataType::FLOAT32;
        default: refuse("dtype " + std::to_string(dtype) + " is unknown");
    }
}

Layout layout_of(uint32_t layout) {
    switch (layout) {
        case TTSP_ROW_MAJOR: return Layout::ROW_MAJOR;
        case TTSP_TILE: return Layout::TILE;
        default: refuse("layout " + std::to_string(layout) + " is unknown");
    }
}

MemoryConfig memory_of(uint32_t memory) {
    switch (memory) {
        case TTSP_DRAM: return MemoryConfig{TensorMemoryLayout::INTERLEAVED, BufferType::DRAM};
        case TTSP_L1: return MemoryConfig{TensorMemoryLayout::INTERLEAVED, BufferType::L1};
        default: refuse("memory " + std::to_string(memory) + " cannot be asked for");
    }
}

ttsp_spec spec_of(const ttnn::Tensor& tensor) {
    const auto& shape = tensor.logical_shape();
    if (shape.rank() > 4) {
        refuse("a tensor of rank " + std::to_string(shape.rank()) + " has no place in this interface");
    }
    ttsp_spec spec{{1, 1, 1, 1}, 0, 0, 0};
    for (size_t i = 0; i < shape.rank(); ++i) {
        spec.shape[4 - shape.rank() + i] = shape[i];
    }
    switch (tensor.dtype()) {
        case DataType::BFLOAT16: spec.dtype = TTSP_BF16; break;
        case DataType::UINT16: spec.dtype = TTSP_U16; break;
        case DataType::UINT32: spec.dtype = TTSP_U32; break;
        case DataType::FLOAT32: spec.dtype = TTSP_F32; break;
        default: refuse("a tensor of a dtype that has no place in this interface");
    }
    spec.layout = tensor.layout() == Layout::TILE ? TTSP_TILE : TTSP_ROW_MAJOR;
    const bool dram = tensor.memory_config().buffer_type() == BufferType::DRAM;
    spec.memory = dram ? TTSP_DRAM : tensor.is_sharded() ? TTSP_L1_SHARDED : TTSP_L1;
    return spec;
}

TensorSpec tensor_spec_of(const ttsp_spec& spec) {
    (void)volume(spec.shape);
    return TensorSpec(
        shape_of(spec.shape),
        TensorLayout(dtype_of(spec.dtype), PageConfig(layout_of(spec.layout)), memory_of(spec.memory)));
}

DispatchCoreType dispatch_of(uint32_t dispatch) {
    switch (dispatch) {
        case TTSP_DISPATCH_WORKER: return DispatchCoreType::WORKER;
        case TTSP_DISPATCH_ETHERNET: return DispatchCoreType::ETH;
        default: refuse("dispatch " + std::to_string(dispatch) + " is unknown");
    }
}

Compute compute_of(const ttsp_compute& compute) {
    Compute config;
    switch (compute.fidelity) {
        case 1: config.math_fidelity = MathFidelity::LoFi; break;
        case 2: config.math_fidelity = MathFidelity::HiFi2; break;
        case 3: config.math_fidelity = MathFidelity::HiFi3; break;
        case 4: config.math_fidelity = MathFidelity::HiFi4; break;
        default: refuse("fidelity " + std::to_string(compute.fidelity) + " is not 1 to 4");
    }
    config.math_approx_mode = false;
    config.fp32_dest_acc_en = compute.fp32_accumulation != 0;
    // A convolution sums one row of the kernel after the other. Without this, what it has summed by then waits in the
    // output's format, bf16, whatever the sums are in.
    config.packer_l1_acc = config.fp32_dest_acc_en;
    return config;
}

std::optional<SliceConfig> slices_of(uint32_t slices) {
    if (slices == 0) {
        return SliceConfig{.slice_type = SliceConfig::SliceType::L1_FULL, .num_slices = 1};
    }
    return SliceConfig{.slice_type = SliceConfig::SliceType::DRAM_HEIGHT, .num_slices = slices};
}

std::array<uint32_t, 2> pair(const uint32_t values[2]) { return {values[0], values[1]}; }

Conv2dConfig conv_config_of(const ttsp_conv2d_options& options) {
    Conv2dConfig config;
    config.weights_dtype = DataType::BFLOAT16;
    if (options.relu != 0) {
        config.activation = ttnn::operations::unary::UnaryWithParam{ttnn::operations::unary::UnaryOpType::RELU};
    }
    config.output_layout = layout_of(options.output_layout);
    // Configuration tensors of all sizes and slices together are more than L1 has to spare.
    config.config_tensors_in_dram = true;
    config.deallocate_activation = false;
    if (options.dram_slices == 0) {
        // Weights are laid out for one way of cutting the map, when they are prepared. Left alone, TT-NN chooses by size
        // there, but goes by the input where the input is in L1 already; where the two differ the result is noise.
        config.shard_layout = TensorMemoryLayout::HEIGHT_SHARDED;
    }
    return config;
}

/// A map must be exactly what the options say: TT-NN reads on regardless when it is wider or higher.
void check_map(const ttnn::Tensor& input, uint32_t height, uint32_t width, uint32_t channels) {
    const uint32_t expected[4] = {1, 1, height * width, channels};
    const auto spec = spec_of(input);
    const bool fits = uint64_t{height} * width <= UINT32_MAX;
    if (!fits || std::memcmp(spec.shape, expected, sizeof expected) != 0) {
        refuse("the input is " + text(spec.shape) + ", but " + text(expected) + " is due");
    }
}

/// TT-NN divides by some of these without a look.
void check_window(
    uint32_t height, uint32_t width, uint32_t channels, const uint32_t kernel[2], const uint32_t stride[2],
    const uint32_t padding[2]) {
    const uint32_t map[2] = {height, width};
    if (channels == 0) {
        refuse("a map of 0 channels");
    }
    for (int axis = 0; axis < 2; ++axis) {
        if (map[axis] == 0 || kernel[axis] == 0 || stride[axis] == 0 ||
            kernel[axis] > uint64_t{map[axis]} + 2 * uint64_t{padding[axis]}) {
            refuse(
                "a window of " + std::to_string(kernel[0]) + "x" + std::to_string(kernel[1]) + " in steps of " +
                std::to_string(stride[0]) + "x" + std::to_string(stride[1]) + ", on a map of " + std::to_string(height) +
                "x" + std::to_string(width));
        }
    }
}

/// Products and sums are of floating-point numbers; TT-NN would make something of integers.
DataType float_of(uint32_t dtype) {
    if (dtype != TTSP_BF16 && dtype != TTSP_F32) {
        refuse("dtype " + std::to_string(dtype) + " of the output is neither bf16 nor fp32");
    }
    return dtype_of(dtype);
}

/// TT-NN would spread the smaller one, and mix number formats.
void check_alike(const ttnn::Tensor& a, const ttnn::Tensor& b) {
    const auto first = spec_of(a);
    const auto second = spec_of(b);
    if (std::memcmp(first.shape, second.shape, sizeof first.shape) != 0 || first.dtype != second.dtype) {
        refuse(
            "the operands are " + text(first.shape) + " and " + text(second.shape) +
            ", but one shape and one number format are due");
    }
}

void check_row_major(const ttnn::Tensor& tensor, size_t bytes) {
    const auto spec = spec_of(tensor);
    const uint64_t due = volume(spec.shape) * (spec.dtype == TTSP_U32 || spec.dtype == TTSP_F32 ? 4 : 2);
    if (spec.layout != TTSP_ROW_MAJOR) {
        refuse("only row-major tensors are written and read");
    }
    if (bytes != due) {
        refuse(std::to_string(bytes) + " bytes for a tensor of " + std::to_string(due));
    }
}

std::vector<bfloat16> to_bf16(const float* values, size_t count) { return {values, values + count}; }

tt::tt_metal::QueueId queue_of(const ttsp_device* device, uint32_t queue) {
    if (queue >= device->queues) {
        refuse("queue " + std::to_string(queue) + " was not opened; there are " + std::to_string(device->queues));
    }
    return tt::tt_metal::QueueId(static_cast<uint8_t>(queue));
}

/// A map as the header describes it: some ways through conv2d and max_pool2d leave height and width apart. Moves nothing.
ttnn::Tensor flat(const ttnn::Tensor& map) {
    const auto spec = spec_of(map);
    const auto& shape = spec.shape;
    return ttnn::reshape(map, Shape({1, 1, shape[0] * shape[1] * shape[2], shape[3]}));
}

/// The one tensor that conv2d gives when nothing else is asked for.
ttnn::Tensor only(ttnn::Conv2dResultWithOptions result) { return std::get<ttnn::Tensor>(std::move(result)); }

}  // namespace

extern "C" {

uint32_t ttsp_abi_version(void) { return TTSP_ABI_VERSION; }

const char* ttsp_ttnn_version(void) { return TTSP_TTNN_VERSION; }

const char* ttsp_last_error(void) { return last_error.c_str(); }

int ttsp_mock(void) {
    return guarded([] { tt::tt_metal::experimental::configure_mock_mode(tt::ARCH::BLACKHOLE, 1); });
}

int ttsp_device_open(const ttsp_device_options* options, ttsp_device** out) {
    return guarded([&] {
        if (options->l1_small_bytes == 0) {
            // TT-NN accepts it and fails in the first convolution.
            refuse("l1_small_bytes is 0, but conv2d and max_pool2d need some");
        }
        if (options->queues != 1 && options->queues != 2) {
            refuse("queues is " + std::to_string(options->queues) + ", but 1 or 2 can be opened");
        }
        const auto type = dispatch_of(options->dispatch);
        auto device = std::make_unique<ttsp_device>();
        device->mesh = MeshDevice::create_unit_mesh(
            static_cast<int>(options->device_id),
            options->l1_small_bytes,
            options->trace_region_bytes,
            options->queues,
            DispatchCoreConfig(type));
        device->queues = options->queues;
        device->mesh->enable_program_cache();
        *out = device.release();
    });
}

int ttsp_device_close(ttsp_device* device) {
    if (device == nullptr) {
        return TTSP_OK;
    }
    const std::unique_ptr<ttsp_device> owned(device);
    return guarded([&] { owned->mesh->close(); });
}

int ttsp_device_info_get(ttsp_device* device, ttsp_device_info* out) {
    return guarded([&] {
        const auto grid = device->mesh->compute_with_storage_grid_size();
        const auto arch = device->mesh->arch();
        *out = ttsp_device_info{
            .arch = arch == tt::ARCH::BLACKHOLE     ? uint32_t{TTSP_ARCH_BLACKHOLE}
                    : arch == tt::ARCH::WORMHOLE_B0 ? uint32_t{TTSP_ARCH_WORMHOLE}
                                                    : uint32_t{TTSP_ARCH_OTHER},
            .grid_columns = static_cast<uint32_t>(grid.x),
            .grid_rows = static_cast<uint32_t>(grid.y),
            .mock = tt::tt_metal::experimental::is_mock_mode_registered() ? 1u : 0u,
            .l1_bytes_per_core = device->mesh->l1_size_per_core(),
            .cached_programs = device->mesh->num_program_cache_entries(),
        };
    });
}

int ttsp_synchronize(ttsp_device* device) {
    return guarded([&] {
        for (uint32_t queue = 0; queue < device->queues; ++queue) {
            device->mesh->mesh_command_queue(static_cast<uint8_t>(queue)).finish();
        }
    });
}

int ttsp_tensor_allocate(ttsp_device* device, const ttsp_spec* spec, ttsp_tensor** out) {
    return one_result(out, [&] { return create_device_tensor(tensor_spec_of(*spec), device->mesh.get()); });
}

int ttsp_tensor_constant(
    ttsp_device* device, const ttsp_spec* spec, const float* values, size_t count, ttsp_tensor** out) {
    return one_result(out, [&] {
        if (spec->dtype != TTSP_BF16 || count != volume(spec->shape)) {
            refuse(std::to_string(count) + " values for a constant of " + text(spec->shape) + " in bf16");
        }
        return ttnn::Tensor::from_vector(to_bf16(values, count), tensor_spec_of(*spec), device->mesh.get());
    });
}

int ttsp_tensor_spec(const ttsp_tensor* tensor, ttsp_spec* out) {
    return guarded([&] { *out = spec_of(tensor->tensor); });
}

int ttsp_tensor_values(const ttsp_tensor* tensor, float* values, size_t count) {
    return guarded([&] {
        const auto spec = spec_of(tensor->tensor);
        if (count != volume(spec.shape)) {
            refuse(std::to_string(count) + " values of a tensor of " + text(spec.shape));
        }
        const auto copy = [&]<typename Element>(const std::vector<Element>& from) {
            std::copy(from.begin(), from.end(), values);
        };
        // TT-NN's host code undoes tiles and shards: no kernel runs that could be what is looked for.
        switch (spec.dtype) {
            case TTSP_U16: copy(tensor->tensor.to_vector<uint16_t>()); break;
            case TTSP_U32: copy(tensor->tensor.to_vector<uint32_t>()); break;
            default: copy(tensor->tensor.to_vector<float>());
        }
    });
}

void ttsp_tensor_free(ttsp_tensor* tensor) {
    guarded([&] { delete tensor; });
}

int ttsp_write(ttsp_device* device, uint32_t queue, const ttsp_tensor* to, const void* data, size_t bytes) {
    return guarded([&] {
        check_row_major(to->tensor, bytes);
        ttnn::Tensor tensor = to->tensor;
        copy_to_device(
            device->mesh->mesh_command_queue(*queue_of(device, queue)), static_cast<const std::byte*>(data), tensor);
    });
}

int ttsp_read(ttsp_device* device, uint32_t queue, const ttsp_tensor* from, void* data, size_t bytes) {
    return guarded([&] {
        check_row_major(from->tensor, bytes);
        copy_to_host(
            device->mesh->mesh_command_queue(*queue_of(device, queue)), from->tensor, static_cast<std::byte*>(data));
    });
}

int ttsp_event_record(ttsp_device* device, uint32_t queue, ttsp_event** out) {
    return guarded([&] {
        *out = new ttsp_event{ttnn::events::record_mesh_event(device->mesh.get(), queue_of(device, queue))};
    });
}

int ttsp_event_wait(ttsp_device* device, uint32_t queue, const ttsp_event* event) {
    return guarded([&] { ttnn::events::wait_for_mesh_event(queue_of(device, queue), event->event); });
}

void ttsp_event_free(ttsp_event* event) {
    guarded([&] { delete event; });
}

int ttsp_trace_begin(ttsp_device* device, ttsp_trace** out) {
    return guarded([&] {
        const auto id = ttnn::operations::trace::begin_trace_capture(device->mesh.get(), queue_of(device, 0));
        *out = new ttsp_trace{device->mesh.get(), id};
    });
}

int ttsp_trace_end(ttsp_trace* trace) {
    return guarded(
        [&] { ttnn::operations::trace::end_trace_capture(trace->device, trace->id, tt::tt_metal::QueueId(0)); });
}

int ttsp_trace_replay(ttsp_trace* trace) {
    return guarded([&] {
        ttnn::operations::trace::execute_trace(trace->device, trace->id, tt::tt_metal::QueueId(0), /*blocking=*/false);
    });
}

int ttsp_trace_release(ttsp_trace* trace) {
    if (trace == nullptr) {
        return TTSP_OK;
    }
    const std::unique_ptr<ttsp_trace> owned(trace);
    return guarded([&] { ttnn::operations::trace::release_trace(owned->device, owned->id); });
}

int ttsp_dry_run_begin(ttsp_device* device) {
    (void)device;
    return guarded([] { ttnn::graph::GraphProcessor::begin_graph_capture(IGraphProcessor::RunMode::NO_DISPATCH); });
}

int ttsp_dry_run_end(ttsp_device* device, ttsp_usage* out) {
    return guarded([&] {
        const auto trace = ttnn::graph::GraphProcessor::end_graph_capture();
        const auto grid = device->mesh->compute_with_storage_grid_size();
        const auto core = ttnn::graph::extract_resource_usage_per_core(trace, grid.x * grid.y);
        const auto dram = ttnn::graph::extract_dram_usage(trace);
        *out = ttsp_usage{core.peak_cb, core.peak_l1, core.peak_total, static_cast<uint64_t>(dram.peak)};
    });
}

int ttsp_conv2d_prepare(
    ttsp_device* device,
    const ttsp_conv2d_options* options,
    const float* weights,
    size_t weight_count,
    const float* bias,
    size_t bias_count,
    ttsp_conv** out) {
    return guarded([&] {
        const auto& o = *options;
        check_window(o.height, o.width, o.in_channels, o.kernel, o.stride, o.padding);
        if (o.out_channels == 0) {
            refuse("a convolution to 0 channels");
        }
        const uint32_t kernel[4] = {o.out_channels, o.in_channels, o.kernel[0], o.kernel[1]};
        // TT-NN takes weights of another input width without a word.
        if (weight_count != volume(kernel) || bias_count != o.out_channels) {
            refuse(
                std::to_string(weight_count) + " weights and " + std::to_string(bias_count) + " biases for a kernel of " +
                text(kernel));
        }
        const auto host = [](const float* values, const uint32_t dims[4]) {
            return ttnn::Tensor::from_vector(
                to_bf16(values, volume(dims)),
                TensorSpec(
                    shape_of(dims),
                    TensorLayout(DataType::BFLOAT16, PageConfig(Layout::ROW_MAJOR), memory_of(TTSP_DRAM))));
        };
        const uint32_t bias_dims[4] = {1, 1, 1, o.out_channels};
        const auto config = conv_config_of(o);
        const auto compute = compute_of(o.compute);
        const auto dtype = float_of(o.output_dtype);
        const auto slices = slices_of(o.dram_slices);
        const auto layout = layout_of(o.input_layout);
        const auto memory = memory_of(o.input_memory == TTSP_L1_SHARDED ? uint32_t{TTSP_L1} : o.input_memory);
        const std::array<uint32_t, 2> dilation{1, 1};
        auto prepared_weights = ttnn::operations::conv::conv2d::prepare_conv_weights(
            host(weights, kernel), memory, layout, "OIHW", o.in_channels, o.out_channels, 1, o.height, o.width,
            pair(o.kernel), pair(o.stride), pair(o.padding), dilation, /*has_bias=*/true, /*groups=*/1,
            device->mesh.get(), DataType::BFLOAT16, dtype, config, compute, slices);
        auto prepared_bias = ttnn::operations::conv::conv2d::prepare_conv_bias(
            host(bias, bias_dims), memory, layout, o.in_channels, o.out_channels, 1, o.height, o.width, pair(o.kernel),
            pair(o.stride), pair(o.padding), dilation, /*groups=*/1, device->mesh.get(), DataType::BFLOAT16, dtype, config,
            compute, slices);
        *out = new ttsp_conv{device->mesh.get(), o, std::move(prepared_weights), std::move(prepared_bias)};
    });
}

void ttsp_conv2d_free(ttsp_conv* conv) {
    guarded([&] { delete conv; });
}

int ttsp_conv2d(const ttsp_conv* conv, const ttsp_tensor* input, ttsp_tensor** out) {
    return one_result(out, [&] {
        const auto& o = conv->options;
        check_map(input->tensor, o.height, o.width, o.in_channels);
        std::optional<const MemoryConfig> memory;
        if (o.output_memory != TTSP_L1_SHARDED) {
            memory.emplace(memory_of(o.output_memory));
        }
        return flat(only(ttnn::conv2d(
            input->tensor, conv->weights, conv->device, o.in_channels, o.out_channels, 1, o.height, o.width,
            pair(o.kernel), pair(o.stride), pair(o.padding), {1, 1}, 1, dtype_of(o.output_dtype), conv->bias,
            conv_config_of(o), compute_of(o.compute), memory, slices_of(o.dram_slices))));
    });
}

int ttsp_max_pool2d(const ttsp_tensor* input, const ttsp_max_pool2d_options* options, ttsp_tensor** out) {
    return one_result(out, [&] {
        const auto& o = *options;
        check_map(input->tensor, o.height, o.width, o.channels);
        check_window(o.height, o.width, o.channels, o.kernel, o.stride, o.padding);
        for (int axis = 0; axis < 2; ++axis) {
            if (o.padding[axis] > o.kernel[axis] / 2) {
                refuse(
                    "padding " + std::to_string(o.padding[axis]) + " is more than half of a window of " +
                    std::to_string(o.kernel[axis]));
            }
        }
        std::optional<const MemoryConfig> memory;
        if (o.output_memory != TTSP_L1_SHARDED) {
            memory.emplace(memory_of(o.output_memory));
        }
        auto result = ttnn::max_pool2d(
            input->tensor, 1, o.height, o.width, o.channels, pair(o.kernel), pair(o.stride), pair(o.padding), {1, 1},
            /*ceil_mode=*/false, memory, slices_of(o.dram_slices), std::nullopt, /*deallocate_input=*/false,
            /*reallocate_halo_output=*/true, /*return_indices=*/false, DataType::BFLOAT16, Layout::ROW_MAJOR,
            /*config_tensor_in_dram=*/true);
        return flat(result.at(0));
    });
}

int ttsp_matmul(
    const ttsp_tensor* a, const ttsp_tensor* b, const ttsp_compute* compute, uint32_t dtype, ttsp_tensor** out) {
    return one_result(out, [&] {
        return ttnn::matmul(
            a->tensor, b->tensor, false, false, memory_of(TTSP_DRAM), float_of(dtype), std::nullopt, std::nullopt,
            compute_of(*compute));
    });
}

int ttsp_softmax(const ttsp_tensor* input, const ttsp_compute* compute, ttsp_tensor** out) {
    return one_result(out, [&] { return ttnn::softmax(input->tensor, 3, memory_of(TTSP_DRAM), compute_of(*compute)); });
}

int ttsp_rms_norm(
    const ttsp_tensor* input, const ttsp_tensor* gamma, float epsilon, const ttsp_compute* compute, ttsp_tensor** out) {
    return one_result(out, [&] {
        return ttnn::rms_norm(
            input->tensor, epsilon, gamma->tensor, std::nullopt, std::nullopt, memory_of(TTSP_DRAM), std::nullopt,
            compute_of(*compute));
    });
}

int ttsp_slice(const ttsp_tensor* input, const uint32_t begin[4], const uint32_t end[4], ttsp_tensor** out) {
    return one_result(out, [&] {
        const auto spec = spec_of(input->tensor);
        for (int axis = 0; axis < 4; ++axis) {
            if (begin[axis] >= end[axis] || end[axis] > spec.shape[axis]) {
                refuse(text(begin) + " to " + text(end) + " is no part of " + text(spec.shape));
            }
        }
        const std::array<uint32_t, 4> first{begin[0], begin[1], begin[2], begin[3]};
        const std::array<uint32_t, 4> last{end[0], end[1], end[2], end[3]};
        return ttnn::slice(input->tensor, first, last, std::array<uint32_t, 4>{1, 1, 1, 1}, memory_of(TTSP_DRAM));
    });
}

int ttsp_reshape(const ttsp_tensor* input, const uint32_t shape[4], ttsp_tensor** out) {
    return one_result(out, [&] {
        const auto spec = spec_of(input->tensor);
        if (volume(shape) != volume(spec.shape)) {
            refuse(text(spec.shape) + " has not as many elements as " + text(shape));
        }
        return ttnn::reshape(input->tensor, shape_of(shape));
    });
}

int ttsp_permute(const ttsp_tensor* input, const uint32_t order[4], ttsp_tensor** out) {
    return one_result(out, [&] {
        for (uint32_t dimension = 0; dimension < 4; ++dimension) {
            if (std::find(order, order + 4, dimension) == order + 4) {
                refuse(text(order) + " is not an order of four dimensions");
            }
        }
        const ttnn::SmallVector<int64_t> dims{order[0], order[1], order[2], order[3]};
        return ttnn::permute(input->tensor, dims, memory_of(TTSP_DRAM));
    });
}

int ttsp_to_layout(const ttsp_tensor* input, uint32_t layout, ttsp_tensor** out) {
    return one_result(out, [&] { return ttnn::to_layout(input->tensor, layout_of(layout)); });
}

int ttsp_to_memory(const ttsp_tensor* input, uint32_t memory, ttsp_tensor** out) {
    return one_result(out, [&] { return ttnn::to_memory_config(input->tensor, memory_of(memory)); });
}

int ttsp_typecast(const ttsp_tensor* input, uint32_t dtype, ttsp_tensor** out) {
    return one_result(out, [&] { return ttnn::typecast(input->tensor, float_of(dtype)); });
}

int ttsp_add(const ttsp_tensor* a, const ttsp_tensor* b, ttsp_tensor** out) {
    return one_result(out, [&] {
        check_alike(a->tensor, b->tensor);
        return ttnn::add(a->tensor, b->tensor);
    });
}

int ttsp_add_scalar(const ttsp_tensor* input, float value, ttsp_tensor** out) {
    return one_result(out, [&] { return ttnn::add(input->tensor, value); });
}

int ttsp_floor(const ttsp_tensor* input, ttsp_tensor** out) {
    return one_result(out, [&] { return ttnn::floor(input->tensor); });
}

int ttsp_eq(const ttsp_tensor* a, const ttsp_tensor* b, ttsp_tensor** out) {
    return one_result(out, [&] {
        check_alike(a->tensor, b->tensor);
        return ttnn::eq(a->tensor, b->tensor);
    });
}

int ttsp_multiply(const ttsp_tensor* a, const ttsp_tensor* b, ttsp_tensor** out) {
    return one_result(out, [&] {
        check_alike(a->tensor, b->tensor);
        return ttnn::multiply(a->tensor, b->tensor);
    });
}

int ttsp_topk(const ttsp_tensor* input, uint32_t k, ttsp_tensor** values, ttsp_tensor** indices) {
    return guarded([&] {
        const auto spec = spec_of(input->tensor);
        if (k == 0 || k > spec.shape[3]) {
            refuse("the " + std::to_string(k) + " largest of " + std::to_string(spec.shape[3]));
        }
        auto result = ttnn::topk(input->tensor, k, -1, /*largest=*/true, /*sorted=*/true, memory_of(TTSP_DRAM));
        auto first = std::make_unique<ttsp_tensor>(ttsp_tensor{std::move(result.at(0))});
        *indices = new ttsp_tensor{std::move(result.at(1))};
        *values = first.release();
    });
}

int ttsp_gather(const ttsp_tensor* input, const ttsp_tensor* indices, ttsp_tensor** out) {
    return one_result(out, [&] {
        return ttnn::gather(input->tensor, -1, indices->tensor, /*sparse_grad=*/false, memory_of(TTSP_DRAM));
    });
}

int ttsp_embedding(const ttsp_tensor* indices, const ttsp_tensor* table, ttsp_tensor** out) {
    return one_result(out, [&] {
        const auto spec = spec_of(indices->tensor);
        if (spec.shape[0] != 1 || spec.shape[1] != 1 || spec.shape[2] != 1) {
            refuse("indices are " + text(spec.shape) + ", but [1, 1, 1, n] is due");
        }
        if (spec.dtype != TTSP_U16 && spec.dtype != TTSP_U32) {
            refuse("indices that are no integers");
        }
        auto rows = ttnn::embedding(
            indices->tensor, table->tensor, std::nullopt, Layout::TILE, ttnn::prim::EmbeddingsType::GENERIC,
            std::nullopt, memory_of(TTSP_DRAM));
        return ttnn::reshape(rows, Shape({1, 1, spec.shape[3], spec_of(table->tensor).shape[3]}));
    });
}

int ttsp_copy(const ttsp_tensor* from, const ttsp_tensor* to) {
    return guarded([&] { ttnn::copy(from->tensor, to->tensor); });
}

}  // extern "C"
