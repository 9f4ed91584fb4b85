/* Two units that compute a max pool only while both are inside `run`: a runtime that lets one task
 * compute at a time never comes to an end here. */
#define _POSIX_C_SOURCE 200112L
#include <pthread.h>

#include "nnstretch/nnstretch.h"

static pthread_barrier_t both;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void prepare_barrier(void) { pthread_barrier_init(&both, NULL, 2); }

static int32_t supports(const nns_call* call) { return call->operation == NNS_POOL2D; }

static int32_t run(int32_t unit, void* prepared, const nns_call* call) {
  const nns_tensor *x = &call->reads[0], *y = &call->write;
  const nns_attributes* pool = &call->attributes;
  (void)unit;
  (void)prepared;
  pthread_barrier_wait(&both);
  for (int64_t c = 0; c < y->sizes[1]; ++c)
    for (int64_t i = 0; i < y->sizes[2]; ++i)
      for (int64_t j = 0; j < y->sizes[3]; ++j) {
        float* target = &y->data[c * y->strides[1] + i * y->strides[2] + j * y->strides[3]];
        const float* corner = x->data + c * x->strides[1] + i * pool->stride[0] * x->strides[2] +
                              j * pool->stride[1] * x->strides[3];
        *target = *corner;
        for (int64_t k = 0; k < pool->window[0] * pool->window[1]; ++k) {
          const float value = corner[k / pool->window[1] * x->strides[2] +
                                     k % pool->window[1] * x->strides[3]];
          if (value > *target) *target = value;
        }
      }
  return 0;
}

const nns_element* nns_element_entry(void) {
  static const nns_element element = {
      NNS_VERSION, "pair", "pair", 2, supports, NULL, run, NULL, NULL,
  };
  pthread_once(&once, prepare_barrier);
  return &element;
}
