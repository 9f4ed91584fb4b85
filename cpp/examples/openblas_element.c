/* An element of a vendor: products of matrices by OpenBLAS, as element type "gemm".
 *
 *   cc -std=c99 -shared -fPIC -I cpp/include cpp/examples/openblas_element.c -lopenblas -o libgemm.so
 *   build/run --elements cpu,library:./libgemm.so
 */
#include <cblas.h>
#include <stdint.h>

#include "nnstretch/nnstretch.h"

enum { UNITS = 4 };

static const char* said[UNITS];

/* Rows without gaps between their numbers, of a matrix that is not transposed. */
static int is_matrix(const nns_tensor* tensor) {
  return tensor->rank >= 2 && tensor->strides[tensor->rank - 1] == 1 &&
         tensor->strides[tensor->rank - 2] >= tensor->sizes[tensor->rank - 1];
}

static int is_transposed(const nns_tensor* tensor) {
  return tensor->rank >= 2 && tensor->strides[tensor->rank - 2] == 1 &&
         tensor->strides[tensor->rank - 1] >= tensor->sizes[tensor->rank - 2];
}

static int has(const nns_call* call, int index) {
  return index < call->reads_count && call->reads[index].rank > 0;
}

/* One product a b + bias, by relu or nothing; leading axes of one. */
static int32_t supports(const nns_call* call) {
  const nns_tensor *a = &call->reads[0], *b = &call->reads[1], *y = &call->write;
  if (call->operation != NNS_MATMUL || call->reads_count < 2 || has(call, 3)) return 0;
  for (int axis = 0; axis + 2 < y->rank; ++axis)
    if (y->sizes[axis] != 1) return 0;
  if (call->attributes.function != NNS_IDENTITY && call->attributes.function != NNS_RELU) return 0;
  if (has(call, 2) && (call->reads[2].rank != 1 || call->reads[2].strides[0] != 1)) return 0;
  return (is_matrix(a) || is_transposed(a)) && (is_matrix(b) || is_transposed(b)) && is_matrix(y);
}

static int32_t run(int32_t unit, void* prepared, const nns_call* call) {
  const nns_tensor *a = &call->reads[0], *b = &call->reads[1], *y = &call->write;
  const int rank = y->rank, across_a = !is_matrix(a), across_b = !is_matrix(b);
  const int64_t m = y->sizes[rank - 2], n = y->sizes[rank - 1], k = a->sizes[rank - 1];
  const int64_t step = y->strides[rank - 2];
  const int64_t step_a = a->strides[across_a ? rank - 1 : rank - 2];
  const int64_t step_b = b->strides[across_b ? rank - 1 : rank - 2];
  (void)prepared;
  said[unit] = "";
  if (m > INT32_MAX || n > INT32_MAX || k > INT32_MAX || step_a > INT32_MAX || step_b > INT32_MAX) {
    said[unit] = "the matrices are too large for 32-bit numbers";
    return 1;
  }
  cblas_sgemm(CblasRowMajor, across_a ? CblasTrans : CblasNoTrans,
              across_b ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, call->attributes.scale,
              a->data, (int)step_a, b->data, (int)step_b, 0.0F, y->data, (int)step);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      float* value = y->data + i * step + j;
      if (has(call, 2)) *value += call->reads[2].data[j];
      if (call->attributes.function == NNS_RELU && *value < 0.0F) *value = 0.0F;
    }
  return 0;
}

static const char* error(int32_t unit) { return said[unit]; }

const nns_element* nns_element_entry(void) {
  static const nns_element element = {
      NNS_VERSION, "openblas", "gemm", UNITS, supports, NULL, run, NULL, error,
  };
  /* The runtime has a thread for every element: the library must not start its own. */
  openblas_set_num_threads(1);
  return &element;
}
