// One call on resolved tensors.
#pragma once

#include "kernels/kernels.hpp"

namespace nnstretch {

// `packed`: weights of a convolution as pack_weights() left them, else null.
void compute_tensors(const Operation& operation, kernels::Reads reads, const kernels::Tensor& y,
                     const float* packed, float* scratch);

}  // namespace nnstretch
