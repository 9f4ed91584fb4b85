/* An element of a vendor in plain C: linear layers by loops, as element type "npu". What a driver
 * would do stands in run(); everything else is what any element needs.
 *
 *   cc -std=c99 -O2 -shared -fPIC -I include examples/linear_element.c -o libnpu.so
 *   build/run --elements cpu,library:./libnpu.so
 */
#include <stddef.h>

#include "nnstretch/nnstretch.h"

static int has(const nns_call* call, int index) {
  return index < call->reads_count && call->reads[index].rank > 0;
}

/* y = a b + bias of two axes each, without an activation or a sum behind it. Data may be NULL. */
static int32_t supports(const nns_call* call) {
  return call->operation == NNS_MATMUL && call->reads[0].rank == 2 && call->reads[1].rank == 2 &&
         (!has(call, 2) || call->reads[2].rank == 1) && !has(call, 3) &&
         call->attributes.function == NNS_IDENTITY;
}

static int32_t run(int32_t unit, void* prepared, const nns_call* call) {
  const nns_tensor *a = &call->reads[0], *b = &call->reads[1], *y = &call->write;
  (void)unit;
  (void)prepared;
  for (int64_t i = 0; i < y->sizes[0]; ++i)
    for (int64_t j = 0; j < y->sizes[1]; ++j) {
      float sum = 0.0F;
      for (int64_t k = 0; k < a->sizes[1]; ++k)
        sum += a->data[i * a->strides[0] + k * a->strides[1]] *
               b->data[k * b->strides[0] + j * b->strides[1]];
      sum *= call->attributes.scale;
      if (has(call, 2)) sum += call->reads[2].data[j * call->reads[2].strides[0]];
      y->data[i * y->strides[0] + j * y->strides[1]] = sum;
    }
  return 0;
}

const nns_element* nns_element_entry(void) {
  static const nns_element element = {
      NNS_VERSION, "linear", "npu", 1, supports, NULL, run, NULL, NULL,
  };
  return &element;
}
