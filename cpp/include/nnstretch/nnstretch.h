/* The C interface: networks, layer calls of hand-written code, and elements of vendors.
 *
 * Functions return a status; what went wrong stands in nns_last_error() of the same thread. No
 * exception leaves the library. Handles are opaque. Numbers are float32, times microseconds. */
#ifndef NNSTRETCH_H
#define NNSTRETCH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NNS_VERSION 1u
#define NNS_MOST_AXES 8
#define NNS_MOST_READS 4
#define NNS_NEVER (-1.0)

typedef enum nns_status {
  NNS_OK = 0,
  NNS_BAD_INPUT = 1,  /* a file, an argument or a configuration that cannot be used */
  NNS_NO_MEMORY = 2,
  NNS_QUEUE_FULL = 3, /* as many as there are places are under way */
  NNS_TOO_LATE = 4,   /* the deadline passed before the inference ended */
  NNS_CANCELLED = 5,
  NNS_FAILED = 6,     /* an element failed while it computed */
  NNS_CLOSED = 7,
  NNS_NOT_YET = 8     /* it has not ended */
} nns_status;

/* What the last call of this thread that did not return NNS_OK or NNS_NOT_YET said. */
const char* nns_last_error(void);

typedef struct nns_runtime nns_runtime;
typedef struct nns_model nns_model; /* an exported network: nns_model_NAME() of its network.hpp */

/* Make a runtime. `config` is JSON, or NULL for one core under EFT:
 *   {"elements": ["cpu", "cpu:1", "emulated:dsp", "library:/path/libgemm.so", "linked:gemm"],
 *    "policy": "eft", "kernels": "portable", "queueing": true, "correct_costs": true,
 *    "priorities": 1, "trace_spans": 0} */
nns_status nns_create(const char* config, nns_runtime** runtime);

/* Open a network before nns_start. `places`: most inferences that may be under way, the queue limit.
 * `costs`: path of a table of costs, or NULL to measure now. `network` receives its number. */
nns_status nns_open(nns_runtime* runtime, const nns_model* model, const char* weights,
                    const char* costs, size_t places, size_t* network);
/* The same with weights in memory that stays, aligned to 64 bytes. */
nns_status nns_open_memory(nns_runtime* runtime, const nns_model* model, const void* weights,
                           size_t size_bytes, const char* costs, size_t places, size_t* network);
nns_status nns_start(nns_runtime* runtime);

typedef struct nns_shape {
  const char* name;
  int32_t rank;
  int64_t sizes[NNS_MOST_AXES];
} nns_shape;

nns_status nns_counts(const nns_runtime* runtime, size_t network, size_t* inputs, size_t* outputs);
nns_status nns_input(const nns_runtime* runtime, size_t network, size_t index, nns_shape* shape);
nns_status nns_output(const nns_runtime* runtime, size_t network, size_t index, nns_shape* shape);

typedef struct nns_request {
  double deadline_us; /* from now on; NNS_NEVER for none */
  size_t priority;    /* below the configured number; the highest goes first */
} nns_request;

typedef struct nns_ticket {
  uint64_t place;
  uint64_t number;
} nns_ticket;

/* `request` may be NULL. Inputs and outputs must stay until the inference has ended. */
nns_status nns_run(nns_runtime* runtime, size_t network, const float* const* inputs,
                   float* const* outputs, const nns_request* request);
nns_status nns_submit(nns_runtime* runtime, size_t network, const float* const* inputs,
                      float* const* outputs, const nns_request* request, nns_ticket* ticket);
/* How an inference ended, once; NNS_NOT_YET where `timeout_us` passed first. Below 0: wait for it.
 * Where it failed, nns_last_error() says why this one did. */
nns_status nns_wait(nns_runtime* runtime, nns_ticket ticket, double timeout_us);
nns_status nns_poll(nns_runtime* runtime, nns_ticket ticket);
/* End an inference as soon as what runs of it has ended; it is waited for all the same. */
nns_status nns_cancel(nns_runtime* runtime, nns_ticket ticket);
/* Cancel what is under way, end the threads, free everything. NULL is allowed. */
void nns_close(nns_runtime* runtime);
/* Write what ran when, for ui.perfetto.dev and `nnstretch report`: the first `trace_spans` tasks, at
 * most 64 MiB of text. */
nns_status nns_write_trace(const nns_runtime* runtime, const char* path);

/* ---- layer calls ------------------------------------------------------------------------- */

typedef struct nns_tensor {
  float* data; /* NULL: absent */
  int32_t rank;
  int64_t sizes[NNS_MOST_AXES];
  int64_t strides[NNS_MOST_AXES]; /* elements */
} nns_tensor;

/* A tensor without gaps. `sizes` NULL, a rank that is none or a size below 1 give a tensor that every
 * call refuses. */
nns_tensor nns_dense(float* data, int32_t rank, const int64_t* sizes);
nns_tensor nns_absent(void);

/* The numbers are those of operations.hpp, in its order. nns_activation enqueues NNS_ELEMENTWISE, a
 * function of one tensor; nns_elementwise enqueues NNS_BINARY, arithmetic of two. */
typedef enum nns_operation {
  NNS_CONV2D, NNS_CONV_TRANSPOSE2D, NNS_MATMUL, NNS_ELEMENTWISE, NNS_BINARY, NNS_SCALAR,
  NNS_POOL2D, NNS_ADAPTIVE_POOL2D, NNS_REDUCE, NNS_CHANNEL_AFFINE, NNS_LAYER_NORM, NNS_GROUP_NORM,
  NNS_SOFTMAX, NNS_RESIZE2D, NNS_COPY, NNS_FILL, NNS_GATHER
} nns_operation;

typedef enum nns_function {
  NNS_IDENTITY, NNS_RELU, NNS_CLAMP, NNS_SILU, NNS_HARDSWISH, NNS_HARDSIGMOID, NNS_SIGMOID,
  NNS_GELU, NNS_GELU_TANH, NNS_ELU, NNS_SELU, NNS_LEAKY_RELU, NNS_MISH, NNS_TANH, NNS_SOFTPLUS,
  NNS_SOFTSIGN, NNS_EXP, NNS_LOG, NNS_SQRT, NNS_RSQRT, NNS_NEGATE, NNS_ABS, NNS_POWER,
  NNS_RECIPROCAL, NNS_SIN, NNS_COS, NNS_ERF, NNS_LOG1P, NNS_EXPM1, NNS_SIGN, NNS_FLOOR, NNS_CEIL,
  NNS_TRUNC, NNS_ROUND
} nns_function;

typedef enum nns_arithmetic {
  NNS_ADD, NNS_SUBTRACT, NNS_MULTIPLY, NNS_DIVIDE, NNS_MAXIMUM, NNS_MINIMUM, NNS_PRELU
} nns_arithmetic;

/* What shapes do not say; operations read what concerns them. nns_defaults() first. */
typedef struct nns_attributes {
  int64_t stride[2];
  int64_t padding[4]; /* top, left, bottom, right */
  int64_t dilation[2];
  int64_t window[2];
  int64_t groups;
  int64_t divisor;       /* average pools; 0: the elements of the window */
  int32_t function;      /* nns_function, behind everything else */
  float a, b;            /* its constants */
  int32_t arithmetic;    /* nns_arithmetic */
  int32_t kind;          /* pools: 0 max, 1 average; reduce: 0 mean, 1 sum, 2 max, 3 norm;
                            resize: 0 nearest, 1 bilinear, 2 nearest-exact */
  int32_t axes;          /* reduce, layer norm: how many of the last */
  int32_t flag;          /* scalar: reversed; pool: count padding; resize: align corners;
                            softmax: logarithm */
  float scale;           /* matmul, binary */
  float number;          /* scalar, fill */
  float epsilon;         /* norms */
  float ratio[2];        /* resize: input pixels by output pixel */
} nns_attributes;

nns_attributes nns_defaults(void);

typedef struct nns_call {
  int32_t operation; /* nns_operation */
  nns_attributes attributes;
  int32_t reads_count;
  nns_tensor reads[NNS_MOST_READS]; /* in the order of operations.hpp */
  nns_tensor write;
} nns_call;

typedef struct nns_session nns_session;

/* Calls of hand-written code on the elements of a runtime, before nns_start. What a call reads and
 * writes orders it after earlier calls of its session. `costs` as in nns_open; with NULL a call is
 * measured when it is first seen. */
nns_status nns_session_open(nns_runtime* runtime, const char* costs, size_t most_calls,
                            nns_session** session);
/* Begin a call where `ticket` is not NULL (NNS_QUEUE_FULL where most_calls are open), else carry it
 * out. Tensors must stay until it has ended. A result that shares memory with an input is refused, but
 * softmax, norms, copies and what computes number by number (NNS_ELEMENTWISE, NNS_BINARY, NNS_SCALAR)
 * may write the very tensor that they read. A call fails with one that it reads from where that one had
 * not ended when it was enqueued. */
nns_status nns_enqueue(nns_session* session, const nns_call* call, uint64_t* ticket);
/* How a call ended, NNS_NOT_YET where `timeout_us` passed first. Of a call before the last 4096 of its
 * session, whose place another one has taken, only the first failure since the last finish is known. */
nns_status nns_session_wait(nns_session* session, uint64_t ticket, double timeout_us);
/* Wait for all calls; the first failure since the last finish. */
nns_status nns_session_finish(nns_session* session);

/* The same by layer; `residual`, `bias` and the like may be nns_absent(). */
nns_status nns_conv2d(nns_session* session, const nns_attributes* attributes, nns_tensor x,
                      nns_tensor weight, nns_tensor bias, nns_tensor residual, nns_tensor y,
                      uint64_t* ticket);
/* x (N,C,L), weight (O,C/groups,k): stride[1], padding[1], padding[3] and dilation[1] are read. */
nns_status nns_conv1d(nns_session* session, const nns_attributes* attributes, nns_tensor x,
                      nns_tensor weight, nns_tensor bias, nns_tensor y, uint64_t* ticket);
nns_status nns_gemm(nns_session* session, const nns_attributes* attributes, nns_tensor a,
                    nns_tensor b, nns_tensor bias, nns_tensor residual, nns_tensor y,
                    uint64_t* ticket);
nns_status nns_elementwise(nns_session* session, const nns_attributes* attributes, nns_tensor a,
                           nns_tensor b, nns_tensor y, uint64_t* ticket);
nns_status nns_activation(nns_session* session, const nns_attributes* attributes, nns_tensor x,
                          nns_tensor y, uint64_t* ticket);
nns_status nns_pool2d(nns_session* session, const nns_attributes* attributes, nns_tensor x,
                      nns_tensor y, uint64_t* ticket);
/* axes > 0: layer norm over the last axes; else a group norm of `groups`. */
nns_status nns_norm(nns_session* session, const nns_attributes* attributes, nns_tensor x,
                    nns_tensor weight, nns_tensor bias, nns_tensor y, uint64_t* ticket);
nns_status nns_softmax(nns_session* session, const nns_attributes* attributes, nns_tensor x,
                       nns_tensor y, uint64_t* ticket);
nns_status nns_resize2d(nns_session* session, const nns_attributes* attributes, nns_tensor x,
                        nns_tensor y, uint64_t* ticket);
nns_status nns_copy(nns_session* session, nns_tensor x, nns_tensor y, uint64_t* ticket);

/* ---- elements of vendors ----------------------------------------------------------------- */

/* Functions return 0 for success (`supports`: 1 for yes). Units are called at once from a thread
 * each; one unit never from two threads at once: it is one runtime's of a program at a time, from
 * nns_create to nns_close. `supports` is no unit's: it may be asked from any thread. */
typedef struct nns_element {
  uint32_t version; /* NNS_VERSION of the header it was compiled with */
  const char* name;
  const char* type; /* costs are by type; "cpu" is the host's */
  int32_t units;    /* how many may be used at once */
  /* Whether it computes this call: operation, attributes, sizes and strides. Data may be NULL. */
  int32_t (*supports)(const nns_call* call);
  /* Make ready; weights are there, other data may be NULL. `prepared` goes to `run`. May be NULL. */
  int32_t (*prepare)(int32_t unit, const nns_call* call, void** prepared);
  /* In a session the result may be the very input: same data, same strides. */
  int32_t (*run)(int32_t unit, void* prepared, const nns_call* call);
  void (*release)(int32_t unit, void* prepared); /* may be NULL */
  const char* (*error)(int32_t unit);            /* why the last function failed; may be NULL */
} nns_element;

/* What a library that is loaded by path has to export. */
#define NNS_ELEMENT_SYMBOL "nns_element_entry"
const nns_element* nns_element_entry(void);

/* Make an element that is linked in known by its name, for "linked:NAME". */
nns_status nns_link_element(const nns_element* element);

#ifdef __cplusplus
}
#endif

#endif
