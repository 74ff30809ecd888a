/* C ABI over the operations of TT-NN (the C++ library of tt-metal) that a convolutional network on one card needs.
 *
 * Every function that can fail returns TTSP_OK or TTSP_ERROR; the text of the calling thread's last error is
 * ttsp_last_error(). No C++ exception leaves the library. Handles are opaque, made by functions with an `out` argument and
 * given back to the matching free or close function; free functions take NULL. A device outlives everything made with it.
 * A device and what belongs to it may be used by one thread at a time, not only by the one that opened it.
 *
 * All tensors have rank 4. Operations run on queue 0. Maps are `[1, 1, height * width, channels]`, as conv2d and
 * max_pool2d of TT-NN have them.
 *
 * Compatibility: a function, an enumerator or a field is never changed or removed without a new TTSP_ABI_VERSION.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TTSP_H
#define TTSP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TTSP_API __attribute__((visibility("default")))
#else
#define TTSP_API
#endif

#define TTSP_ABI_VERSION 1u

enum { TTSP_OK = 0, TTSP_ERROR = 1 };
enum { TTSP_BF16 = 0, TTSP_U16 = 1, TTSP_U32 = 2, TTSP_F32 = 3 };
enum { TTSP_ROW_MAJOR = 0, TTSP_TILE = 1 };
/* TTSP_L1_SHARDED is only reported: the operation that made the tensor chose how it is cut. */
enum { TTSP_DRAM = 0, TTSP_L1 = 1, TTSP_L1_SHARDED = 2 };
enum { TTSP_ARCH_OTHER = 0, TTSP_ARCH_WORMHOLE = 1, TTSP_ARCH_BLACKHOLE = 2 };
enum { TTSP_DISPATCH_WORKER = 0, TTSP_DISPATCH_ETHERNET = 1 };

typedef struct ttsp_device ttsp_device;
typedef struct ttsp_tensor ttsp_tensor;
typedef struct ttsp_conv ttsp_conv;
typedef struct ttsp_event ttsp_event;
typedef struct ttsp_trace ttsp_trace;

typedef struct {
    uint32_t device_id;
    uint32_t queues;            /* hardware command queues, 1 or 2 */
    uint32_t dispatch;          /* cores that fetch and dispatch commands: TTSP_DISPATCH_... */
    uint32_t l1_small_bytes;    /* L1 for configuration tensors of conv2d and max_pool2d, per core */
    uint64_t trace_region_bytes;
} ttsp_device_options;

typedef struct {
    uint32_t arch;              /* TTSP_ARCH_... */
    uint32_t grid_columns;      /* worker cores that operations may use */
    uint32_t grid_rows;
    uint32_t mock;              /* 1: there is no card behind it */
    uint64_t l1_bytes_per_core;
    uint64_t cached_programs;
} ttsp_device_info;

typedef struct {
    uint32_t shape[4];
    uint32_t dtype;
    uint32_t layout;
    uint32_t memory;
} ttsp_spec;

/* How products are computed. */
typedef struct {
    uint32_t fidelity;          /* passes of the multiplier: 1 (LoFi) to 4 (HiFi4) */
    uint32_t fp32_accumulation; /* 1: sums in fp32, 0: in bf16 */
} ttsp_compute;

typedef struct {
    uint32_t height, width;     /* of the input map */
    uint32_t in_channels, out_channels;
    uint32_t kernel[2], stride[2], padding[2];
    uint32_t relu;              /* 1: max(x, 0) after the bias */
    uint32_t dram_slices;       /* horizontal slices that go through L1 one by one; 0: the whole map at once */
    uint32_t input_layout, input_memory;
    uint32_t output_layout;
    uint32_t output_dtype;      /* TTSP_BF16 or TTSP_F32 */
    uint32_t output_memory;     /* TTSP_DRAM, or TTSP_L1_SHARDED: as the operation leaves it (without slices) */
    ttsp_compute compute;
} ttsp_conv2d_options;

typedef struct {
    uint32_t height, width, channels;
    uint32_t kernel[2], stride[2], padding[2];
    uint32_t dram_slices;       /* as in ttsp_conv2d_options */
    uint32_t output_memory;     /* as in ttsp_conv2d_options */
} ttsp_max_pool2d_options;

/* What was used between ttsp_dry_run_begin and ttsp_dry_run_end, at its peak. */
typedef struct {
    uint64_t circular_buffers;  /* bytes per core */
    uint64_t l1_buffers;        /* bytes per core */
    uint64_t l1_total;          /* bytes per core, both at the same time */
    uint64_t dram_bytes;
} ttsp_usage;

/* --- library --- */

TTSP_API uint32_t ttsp_abi_version(void);
/* Version of TT-NN that the library was compiled against. */
TTSP_API const char *ttsp_ttnn_version(void);
/* Valid until the next call of the same thread. Never NULL. */
TTSP_API const char *ttsp_last_error(void);
/* Devices opened afterwards are mock Blackhole cards: host code runs, nothing is computed. Once, before any open. */
TTSP_API int ttsp_mock(void);

/* --- device --- */

TTSP_API int ttsp_device_open(const ttsp_device_options *options, ttsp_device **out);
TTSP_API int ttsp_device_close(ttsp_device *device);
TTSP_API int ttsp_device_info_get(ttsp_device *device, ttsp_device_info *out);
/* Waits for everything that was given to both queues. */
TTSP_API int ttsp_synchronize(ttsp_device *device);

/* --- tensors --- */

TTSP_API int ttsp_tensor_allocate(ttsp_device *device, const ttsp_spec *spec, ttsp_tensor **out);
/* A bf16 tensor of any layout with these values, given row-major. */
TTSP_API int ttsp_tensor_constant(ttsp_device *device, const ttsp_spec *spec, const float *values, size_t count,
                                  ttsp_tensor **out);
TTSP_API int ttsp_tensor_spec(const ttsp_tensor *tensor, ttsp_spec *out);
/* Values of a tensor of any layout, number format and place, row-major, as singles; integers above 2^24 are rounded. Waits
 * until they are there. For looking at what an operation gave: TT-NN's host code converts, which is slow. */
TTSP_API int ttsp_tensor_values(const ttsp_tensor *tensor, float *values, size_t count);
TTSP_API void ttsp_tensor_free(ttsp_tensor *tensor);
/* Row-major tensors only; `bytes` is the whole tensor. The data is copied before the call returns. */
TTSP_API int ttsp_write(ttsp_device *device, uint32_t queue, const ttsp_tensor *to, const void *data, size_t bytes);
/* Row-major tensors only; waits until the data is there. */
TTSP_API int ttsp_read(ttsp_device *device, uint32_t queue, const ttsp_tensor *from, void *data, size_t bytes);

/* --- order between queues --- */

TTSP_API int ttsp_event_record(ttsp_device *device, uint32_t queue, ttsp_event **out);
/* Commands given to `queue` later wait for the event. */
TTSP_API int ttsp_event_wait(ttsp_device *device, uint32_t queue, const ttsp_event *event);
TTSP_API void ttsp_event_free(ttsp_event *event);

/* --- traces --- */

/* Operations until ttsp_trace_end are recorded, not run. All programs must be cached, and nothing may be written. */
TTSP_API int ttsp_trace_begin(ttsp_device *device, ttsp_trace **out);
TTSP_API int ttsp_trace_end(ttsp_trace *trace);
/* Does not wait for the end of the run. */
TTSP_API int ttsp_trace_replay(ttsp_trace *trace);
TTSP_API int ttsp_trace_release(ttsp_trace *trace);

/* --- dry run: operations are checked and planned, nothing is allocated or run --- */

TTSP_API int ttsp_dry_run_begin(ttsp_device *device);
TTSP_API int ttsp_dry_run_end(ttsp_device *device, ttsp_usage *out);

/* --- operations --- */

/* `weights` is [out][in][kernel 0][kernel 1], `bias` is [out]. */
TTSP_API int ttsp_conv2d_prepare(ttsp_device *device, const ttsp_conv2d_options *options, const float *weights,
                                 size_t weight_count, const float *bias, size_t bias_count, ttsp_conv **out);
TTSP_API void ttsp_conv2d_free(ttsp_conv *conv);
TTSP_API int ttsp_conv2d(const ttsp_conv *conv, const ttsp_tensor *input, ttsp_tensor **out);
/* Output is row-major. */
TTSP_API int ttsp_max_pool2d(const ttsp_tensor *input, const ttsp_max_pool2d_options *options, ttsp_tensor **out);
/* `dtype` of the product: TTSP_BF16 or TTSP_F32. */
TTSP_API int ttsp_matmul(const ttsp_tensor *a, const ttsp_tensor *b, const ttsp_compute *compute, uint32_t dtype,
                         ttsp_tensor **out);
/* Over the last dimension, in the number format of the input. */
TTSP_API int ttsp_softmax(const ttsp_tensor *input, const ttsp_compute *compute, ttsp_tensor **out);
/* x / sqrt(mean(x * x) + epsilon) * gamma over the last dimension; gamma is [1, 1, 1, last dimension]. */
TTSP_API int ttsp_rms_norm(const ttsp_tensor *input, const ttsp_tensor *gamma, float epsilon,
                           const ttsp_compute *compute, ttsp_tensor **out);
/* Elements from `begin` to before `end`. */
TTSP_API int ttsp_slice(const ttsp_tensor *input, const uint32_t begin[4], const uint32_t end[4], ttsp_tensor **out);
TTSP_API int ttsp_reshape(const ttsp_tensor *input, const uint32_t shape[4], ttsp_tensor **out);
/* Dimension i of the output is dimension order[i] of the input. */
TTSP_API int ttsp_permute(const ttsp_tensor *input, const uint32_t order[4], ttsp_tensor **out);
TTSP_API int ttsp_to_layout(const ttsp_tensor *input, uint32_t layout, ttsp_tensor **out);
/* TTSP_DRAM or TTSP_L1. */
TTSP_API int ttsp_to_memory(const ttsp_tensor *input, uint32_t memory, ttsp_tensor **out);
/* TTSP_BF16 or TTSP_F32, rounded to the nearest. */
TTSP_API int ttsp_typecast(const ttsp_tensor *input, uint32_t dtype, ttsp_tensor **out);
TTSP_API int ttsp_add(const ttsp_tensor *a, const ttsp_tensor *b, ttsp_tensor **out);
TTSP_API int ttsp_add_scalar(const ttsp_tensor *input, float value, ttsp_tensor **out);
TTSP_API int ttsp_floor(const ttsp_tensor *input, ttsp_tensor **out);
/* 1 where equal, else 0. */
TTSP_API int ttsp_eq(const ttsp_tensor *a, const ttsp_tensor *b, ttsp_tensor **out);
TTSP_API int ttsp_multiply(const ttsp_tensor *a, const ttsp_tensor *b, ttsp_tensor **out);
/* The k largest of the last dimension, descending, and their indices (TTSP_U16); equal values in any order. */
TTSP_API int ttsp_topk(const ttsp_tensor *input, uint32_t k, ttsp_tensor **values, ttsp_tensor **indices);
/* Along the last dimension: element i of a row of the output is element indices[i] of that row of the input. In tiles. */
TTSP_API int ttsp_gather(const ttsp_tensor *input, const ttsp_tensor *indices, ttsp_tensor **out);
/* Rows of `table`, [1, 1, rows, width], by number: indices [1, 1, 1, n] give [1, 1, n, width] in tiles. */
TTSP_API int ttsp_embedding(const ttsp_tensor *indices, const ttsp_tensor *table, ttsp_tensor **out);
/* Overwrites `to` by `from`; both have one spec. */
TTSP_API int ttsp_copy(const ttsp_tensor *from, const ttsp_tensor *to);

#ifdef __cplusplus
}
#endif

#endif
