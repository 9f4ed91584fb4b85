// All kernels for one instruction set: NNSTRETCH_TABLE names the table, the flags of the compiler
// the set.
#include "kernels.hpp"

#include <math.h>

#define NNSTRETCH_TEXT(name) #name
#define NNSTRETCH_NAME(name) NNSTRETCH_TEXT(name)

namespace nnstretch::kernels {
namespace {

#include "lanes.inc"
#include "functions.inc"
#include "gemm.inc"
#include "convolution.inc"
#include "elementwise.inc"
#include "pooling.inc"
#include "norms.inc"
#include "resize.inc"

}  // namespace

extern const Table NNSTRETCH_TABLE;
const Table NNSTRETCH_TABLE{
    NNSTRETCH_NAME(NNSTRETCH_TABLE), packed_floats, pack, conv2d,  conv_transpose2d, matmul,
    elementwise, binary, scalar, pool2d, adaptive_pool2d, reduce, channel_affine, layer_norm,
    group_norm, softmax, resize2d, copy, fill};

}  // namespace nnstretch::kernels
