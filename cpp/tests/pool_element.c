/* An element that computes max pools of 2x2 without borders and reads maps as their views say. */
#include <stddef.h>

#include "nnstretch/nnstretch.h"

static int32_t supports(const nns_call* call) {
  const nns_attributes* pool = &call->attributes;
  return call->operation == NNS_POOL2D && pool->kind == 0 && pool->window[0] == 2 &&
         pool->window[1] == 2 && pool->stride[0] == 2 && pool->stride[1] == 2 &&
         pool->padding[0] == 0 && pool->padding[1] == 0;
}

static float at(const nns_tensor* x, int64_t n, int64_t c, int64_t y, int64_t column) {
  return x->data[n * x->strides[0] + c * x->strides[1] + y * x->strides[2] + column * x->strides[3]];
}

static int32_t run(int32_t unit, void* prepared, const nns_call* call) {
  const nns_tensor *x = &call->reads[0], *y = &call->write;
  (void)unit;
  (void)prepared;
  for (int64_t n = 0; n < y->sizes[0]; ++n)
    for (int64_t c = 0; c < y->sizes[1]; ++c)
      for (int64_t i = 0; i < y->sizes[2]; ++i)
        for (int64_t j = 0; j < y->sizes[3]; ++j) {
          float most = at(x, n, c, 2 * i, 2 * j);
          for (int64_t part = 1; part < 4; ++part) {
            const float value = at(x, n, c, 2 * i + part / 2, 2 * j + part % 2);
            if (value > most) most = value;
          }
          y->data[n * y->strides[0] + c * y->strides[1] + i * y->strides[2] + j * y->strides[3]] =
              most;
        }
  return 0;
}

const nns_element* nns_element_entry(void) {
  static const nns_element element = {
      NNS_VERSION, "pool", "npu", 1, supports, NULL, run, NULL, NULL,
  };
  return &element;
}
