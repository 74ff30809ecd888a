/* A test double of the C ABI: it keeps shapes and bytes, computes nothing, counts what is alive, and fails on demand.
 *
 * Compiled by tests/abi.rs against the real header, so that a function whose signature differs does not compile.
 * -DDOUBLE_VERSION=n changes the version that it claims, -DDOUBLE_INCOMPLETE leaves a function out. Structs are compared
 * here, field by field with what tests/abi.rs gives: a test in Rust would see its own mistakes twice.
 */
#include "ttsp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef DOUBLE_VERSION
#define DOUBLE_VERSION TTSP_ABI_VERSION
#endif

struct ttsp_device { int recording; uint32_t queues; };
struct ttsp_tensor { ttsp_spec spec; unsigned char *bytes; uint32_t queue; /* of the last write */ };
struct ttsp_conv { ttsp_conv2d_options options; };
struct ttsp_event { uint32_t queue; };
struct ttsp_trace { ttsp_device *device; int replays; };

static int alive_devices;
static int alive_handles;
static __thread char last_error[256];

/* Read by the test. */
TTSP_API int double_alive_devices(void) { return alive_devices; }
TTSP_API int double_alive_handles(void) { return alive_handles; }

static int fail(const char *text) {
    snprintf(last_error, sizeof last_error, "%s", text);
    return TTSP_ERROR;
}

static void *make(size_t size) {
    ++alive_handles;
    return calloc(1, size);
}

static void drop(void *handle) {
    if (handle != NULL) {
        --alive_handles;
        free(handle);
    }
}

static size_t bytes_of(const ttsp_spec *spec) {
    size_t elements = (size_t)spec->shape[0] * spec->shape[1] * spec->shape[2] * spec->shape[3];
    return elements * (spec->dtype == TTSP_U32 || spec->dtype == TTSP_F32 ? 4 : 2);
}

static int tensor(const ttsp_spec *spec, ttsp_tensor **out) {
    if (spec->shape[0] == 99) {
        return fail("no room");
    }
    ttsp_tensor *made = make(sizeof *made);
    made->spec = *spec;
    made->bytes = calloc(1, bytes_of(spec) + 1);
    *out = made;
    return TTSP_OK;
}

/* Results look like their first input, but for what the function says. */
static int like(const ttsp_tensor *input, const uint32_t *shape, ttsp_tensor **out) {
    ttsp_spec spec = input->spec;
    if (shape != NULL) {
        memcpy(spec.shape, shape, sizeof spec.shape);
    }
    return tensor(&spec, out);
}

uint32_t ttsp_abi_version(void) { return DOUBLE_VERSION; }
const char *ttsp_ttnn_version(void) { return "double"; }
const char *ttsp_last_error(void) { return last_error; }
#ifndef DOUBLE_INCOMPLETE
int ttsp_mock(void) { return TTSP_OK; }
#endif

int ttsp_device_open(const ttsp_device_options *options, ttsp_device **out) {
    /* Card 5 is for the one that knows how. */
    const ttsp_device_options due = {.device_id = 5, .queues = 2, .dispatch = TTSP_DISPATCH_ETHERNET,
                                     .l1_small_bytes = 6, .trace_region_bytes = 12345678901ull};
    if (options->device_id == 5 && memcmp(options, &due, sizeof due) != 0) {
        return fail("other options");
    }
    if (options->device_id == 7) {
        return fail("Root Directory is not set.");
    }
    if (options->device_id != 0 && options->device_id != 5) {
        return fail("No chips detected in the cluster");
    }
    ++alive_devices;
    *out = calloc(1, sizeof **out);
    (*out)->queues = options->queues;
    return TTSP_OK;
}

int ttsp_device_close(ttsp_device *device) {
    if (device != NULL) {
        if (alive_handles != 0) {
            /* Everything else must be gone by now. */
            abort();
        }
        --alive_devices;
        free(device);
    }
    return TTSP_OK;
}

int ttsp_device_info_get(ttsp_device *device, ttsp_device_info *out) {
    (void)device;
    *out = (ttsp_device_info){.arch = TTSP_ARCH_BLACKHOLE, .grid_columns = 11, .grid_rows = 10, .mock = 1,
                              .l1_bytes_per_core = 12345678901ull, .cached_programs = 7};
    return TTSP_OK;
}

int ttsp_synchronize(ttsp_device *device) { return device->recording ? fail("recording") : TTSP_OK; }

int ttsp_tensor_allocate(ttsp_device *device, const ttsp_spec *spec, ttsp_tensor **out) {
    (void)device;
    return tensor(spec, out);
}

int ttsp_tensor_constant(ttsp_device *device, const ttsp_spec *spec, const float *values, size_t count,
                         ttsp_tensor **out) {
    (void)device;
    (void)values;
    return count * 2 == bytes_of(spec) ? tensor(spec, out) : fail("a constant of another length");
}

int ttsp_tensor_spec(const ttsp_tensor *t, ttsp_spec *out) {
    *out = t->spec;
    if (t->spec.shape[0] == 98) {
        out->dtype = 77;
    }
    return TTSP_OK;
}

int ttsp_tensor_values(const ttsp_tensor *t, float *values, size_t count) {
    if (count * 2 != bytes_of(&t->spec)) {
        return fail("values of another length");
    }
    for (size_t i = 0; i < count; ++i) {
        values[i] = (float)((const uint16_t *)t->bytes)[i] / 2;
    }
    return TTSP_OK;
}

void ttsp_tensor_free(ttsp_tensor *t) {
    if (t != NULL) {
        free(t->bytes);
        drop(t);
    }
}

int ttsp_write(ttsp_device *device, uint32_t queue, const ttsp_tensor *to, const void *data, size_t bytes) {
    if (queue >= device->queues || bytes != bytes_of(&to->spec)) {
        return fail("a write of another length");
    }
    memcpy(to->bytes, data, bytes);
    ((ttsp_tensor *)to)->queue = queue;
    return TTSP_OK;
}

int ttsp_read(ttsp_device *device, uint32_t queue, const ttsp_tensor *from, void *data, size_t bytes) {
    if (queue >= device->queues || bytes != bytes_of(&from->spec)) {
        return fail("a read of another length");
    }
    if (queue != from->queue) {
        return fail("another queue than that of the write");
    }
    memcpy(data, from->bytes, bytes);
    return TTSP_OK;
}

int ttsp_event_record(ttsp_device *device, uint32_t queue, ttsp_event **out) {
    (void)device;
    *out = make(sizeof **out);
    (*out)->queue = queue;
    return TTSP_OK;
}

int ttsp_event_wait(ttsp_device *device, uint32_t queue, const ttsp_event *event) {
    (void)device;
    return queue == event->queue ? fail("waits for itself") : TTSP_OK;
}

void ttsp_event_free(ttsp_event *event) { drop(event); }

int ttsp_trace_begin(ttsp_device *device, ttsp_trace **out) {
    if (device->recording) {
        return fail("already recording");
    }
    device->recording = 1;
    *out = make(sizeof **out);
    (*out)->device = device;
    return TTSP_OK;
}

int ttsp_trace_end(ttsp_trace *trace) {
    trace->device->recording = 0;
    return TTSP_OK;
}

int ttsp_trace_replay(ttsp_trace *trace) { return ++trace->replays > 2 ? fail("device lost") : TTSP_OK; }

int ttsp_trace_release(ttsp_trace *trace) {
    drop(trace);
    return TTSP_OK;
}

int ttsp_dry_run_begin(ttsp_device *device) { return ttsp_synchronize(device); }

int ttsp_dry_run_end(ttsp_device *device, ttsp_usage *out) {
    (void)device;
    *out = (ttsp_usage){1, 2, 3, 4};
    return TTSP_OK;
}

int ttsp_conv2d_prepare(ttsp_device *device, const ttsp_conv2d_options *options, const float *weights,
                        size_t weight_count, const float *bias, size_t bias_count, ttsp_conv **out) {
    (void)device;
    const ttsp_conv2d_options due = {
        .height = 21, .width = 22, .in_channels = 2, .out_channels = 3, .kernel = {23, 24}, .stride = {25, 26},
        .padding = {27, 28}, .relu = 1, .dram_slices = 29, .input_layout = TTSP_TILE, .input_memory = TTSP_L1,
        .output_layout = TTSP_ROW_MAJOR, .output_dtype = TTSP_F32, .output_memory = TTSP_L1_SHARDED,
        .compute = {.fidelity = 2, .fp32_accumulation = 1}};
    if (weights[0] != 1.5f || weight_count != 6 || bias[0] != 2.5f || bias_count != 3 ||
        memcmp(options, &due, sizeof due) != 0) {
        return fail("other options");
    }
    *out = make(sizeof **out);
    (*out)->options = *options;
    return TTSP_OK;
}

void ttsp_conv2d_free(ttsp_conv *conv) { drop(conv); }

int ttsp_conv2d(const ttsp_conv *conv, const ttsp_tensor *input, ttsp_tensor **out) {
    const uint32_t shape[4] = {1, 1, 1, conv->options.out_channels};
    return like(input, shape, out);
}

int ttsp_max_pool2d(const ttsp_tensor *input, const ttsp_max_pool2d_options *options, ttsp_tensor **out) {
    const ttsp_max_pool2d_options due = {.height = 31, .width = 32, .channels = 33, .kernel = {34, 35},
                                         .stride = {36, 37}, .padding = {38, 39}, .dram_slices = 40,
                                         .output_memory = TTSP_L1};
    return memcmp(options, &due, sizeof due) == 0 ? like(input, NULL, out) : fail("other options");
}

int ttsp_matmul(const ttsp_tensor *a, const ttsp_tensor *b, const ttsp_compute *compute, uint32_t dtype,
                ttsp_tensor **out) {
    ttsp_spec spec = {{a->spec.shape[0], a->spec.shape[1], a->spec.shape[2], b->spec.shape[3]}, dtype, TTSP_TILE, 0};
    if (a->spec.shape[3] != b->spec.shape[2]) {
        return fail("shapes");
    }
    return compute->fidelity == 4 && compute->fp32_accumulation == 1 ? tensor(&spec, out) : fail("compute");
}

int ttsp_softmax(const ttsp_tensor *input, const ttsp_compute *compute, ttsp_tensor **out) {
    return compute->fidelity == 3 && compute->fp32_accumulation == 0 ? like(input, NULL, out) : fail("compute");
}

int ttsp_rms_norm(const ttsp_tensor *input, const ttsp_tensor *gamma, float epsilon, const ttsp_compute *compute,
                  ttsp_tensor **out) {
    if (gamma->spec.shape[2] != 1 || gamma->spec.shape[3] != input->spec.shape[3]) {
        return fail("gamma");
    }
    return epsilon == 0.5f && compute->fidelity == 1 ? like(input, NULL, out) : fail("epsilon or compute");
}

int ttsp_slice(const ttsp_tensor *input, const uint32_t begin[4], const uint32_t end[4], ttsp_tensor **out) {
    uint32_t shape[4];
    for (int i = 0; i < 4; ++i) {
        shape[i] = end[i] - begin[i];
    }
    return like(input, shape, out);
}

int ttsp_reshape(const ttsp_tensor *input, const uint32_t shape[4], ttsp_tensor **out) { return like(input, shape, out); }

int ttsp_permute(const ttsp_tensor *input, const uint32_t order[4], ttsp_tensor **out) {
    uint32_t shape[4];
    for (int i = 0; i < 4; ++i) {
        shape[i] = input->spec.shape[order[i]];
    }
    return like(input, shape, out);
}

int ttsp_to_layout(const ttsp_tensor *input, uint32_t layout, ttsp_tensor **out) {
    ttsp_spec spec = input->spec;
    spec.layout = layout;
    return tensor(&spec, out);
}

int ttsp_to_memory(const ttsp_tensor *input, uint32_t memory, ttsp_tensor **out) {
    ttsp_spec spec = input->spec;
    spec.memory = memory;
    return memory == TTSP_L1_SHARDED ? fail("cannot be asked for") : tensor(&spec, out);
}

int ttsp_typecast(const ttsp_tensor *input, uint32_t dtype, ttsp_tensor **out) {
    ttsp_spec spec = input->spec;
    spec.dtype = dtype;
    return tensor(&spec, out);
}

int ttsp_add(const ttsp_tensor *a, const ttsp_tensor *b, ttsp_tensor **out) {
    return bytes_of(&a->spec) == bytes_of(&b->spec) ? like(a, NULL, out) : fail("another size");
}

int ttsp_add_scalar(const ttsp_tensor *input, float value, ttsp_tensor **out) {
    return value == 0.5f ? like(input, NULL, out) : fail("value");
}

int ttsp_floor(const ttsp_tensor *input, ttsp_tensor **out) { return like(input, NULL, out); }

int ttsp_eq(const ttsp_tensor *a, const ttsp_tensor *b, ttsp_tensor **out) {
    (void)b;
    return like(a, NULL, out);
}

int ttsp_multiply(const ttsp_tensor *a, const ttsp_tensor *b, ttsp_tensor **out) { return ttsp_eq(a, b, out); }

int ttsp_topk(const ttsp_tensor *input, uint32_t k, ttsp_tensor **values, ttsp_tensor **indices) {
    ttsp_spec spec = input->spec;
    spec.shape[3] = k;
    tensor(&spec, values);
    spec.dtype = TTSP_U16;
    return tensor(&spec, indices);
}

int ttsp_gather(const ttsp_tensor *input, const ttsp_tensor *indices, ttsp_tensor **out) {
    return like(input, indices->spec.shape, out);
}

int ttsp_embedding(const ttsp_tensor *indices, const ttsp_tensor *table, ttsp_tensor **out) {
    const uint32_t shape[4] = {1, 1, indices->spec.shape[3], table->spec.shape[3]};
    return like(table, shape, out);
}

int ttsp_copy(const ttsp_tensor *from, const ttsp_tensor *to) {
    if (bytes_of(&from->spec) != bytes_of(&to->spec)) {
        return fail("another size");
    }
    memcpy(to->bytes, from->bytes, bytes_of(&to->spec));
    return TTSP_OK;
}
