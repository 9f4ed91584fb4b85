// What a call computes: one plain struct per operation, with the names PyTorch gives attributes.
#pragma once

#include <array>
#include <cmath>  // HUGE_VALF and NAN, as exported networks write constants.
#include <cstdint>
#include <variant>

namespace nnstretch {

enum class Function : std::uint8_t {
  identity, relu, clamp, silu, hardswish, hardsigmoid, sigmoid, gelu, gelu_tanh, elu, selu,
  leaky_relu, mish, tanh, softplus, softsign, exp, log, sqrt, rsqrt, negate, abs, power, reciprocal,
  sin, cos, erf, log1p, expm1, sign, floor, ceil, trunc, round
};
enum class Arithmetic : std::uint8_t { add, subtract, multiply, divide, maximum, minimum, prelu };
enum class Pooling : std::uint8_t { max, average };
enum class Reduction : std::uint8_t { mean, sum, max, norm2 };
enum class Interpolation : std::uint8_t { nearest, bilinear, nearest_exact };

// y = function(x); `a` and `b` are its constants (clamp: least and most; elu: alpha; ...).
struct Activation {
  Function function = Function::identity;
  float a = 0.0F;
  float b = 0.0F;
};

// reads: x (N,C,H,W), weight (O,C/groups,kh,kw), bias (O) or none, residual (as the result) or none.
// y = activation(conv(x) + bias + residual).
struct Conv2d {
  std::array<std::int64_t, 2> stride{1, 1};
  std::array<std::int64_t, 4> padding{0, 0, 0, 0};  // top, left, bottom, right
  std::array<std::int64_t, 2> dilation{1, 1};
  std::int64_t groups = 1;
  Activation activation{};
};

// reads: x (N,C,H,W), weight (C,O/groups,kh,kw), bias (O) or none.
struct ConvTranspose2d {
  std::array<std::int64_t, 2> stride{1, 1};
  std::array<std::int64_t, 2> padding{0, 0};
  std::array<std::int64_t, 2> dilation{1, 1};
  std::int64_t groups = 1;
  Activation activation{};
};

// reads: a (..,M,K), b (..,K,N), bias (N) or none, residual (as the result) or none.
// y = activation(scale a b + bias + residual); leading axes broadcast by strides of 0.
struct Matmul {
  float scale = 1.0F;
  Activation activation{};
};

// reads: x.
struct Elementwise {
  Activation activation{};
};

// reads: a, b of the shape of the result (broadcast by strides of 0). y = activation(a op scale b).
struct Binary {
  Arithmetic arithmetic = Arithmetic::add;
  float scale = 1.0F;
  Activation activation{};
};

// reads: x. y = activation(x op number), or number op x where `reversed`.
struct Scalar {
  Arithmetic arithmetic = Arithmetic::add;
  float number = 0.0F;
  bool reversed = false;
  Activation activation{};
};

// reads: x (N,C,H,W).
struct Pool2d {
  Pooling pooling = Pooling::max;
  std::array<std::int64_t, 2> window{1, 1};
  std::array<std::int64_t, 2> stride{1, 1};
  std::array<std::int64_t, 2> padding{0, 0};
  std::array<std::int64_t, 2> dilation{1, 1};
  bool count_padding = true;
  std::int64_t divisor = 0;  // 0: the number of elements in the window.
};

// reads: x (N,C,H,W).
struct AdaptivePool2d {
  Pooling pooling = Pooling::average;
};

// reads: x with the reduced axes last.
struct Reduce {
  Reduction reduction = Reduction::mean;
  int axes = 1;  // How many of the last axes are reduced.
};

// reads: x (N,C,...), scale (C), shift (C): a batch norm that no convolution took.
struct ChannelAffine {
  Activation activation{};
};

// reads: x, weight or none, bias or none; over the last `axes` axes.
struct LayerNorm {
  int axes = 1;
  float epsilon = 1e-5F;
};

// reads: x (N,C,...), weight (C) or none, bias (C) or none.
struct GroupNorm {
  std::int64_t groups = 1;
  float epsilon = 1e-5F;
};

// reads: x; over the last axis.
struct Softmax {
  bool logarithm = false;
};

// reads: x (N,C,H,W). `scale` is input pixels per output pixel.
struct Resize2d {
  Interpolation interpolation = Interpolation::nearest;
  bool align_corners = false;
  std::array<float, 2> scale{1.0F, 1.0F};
};

// reads: x of the shape of the result.
struct Copy {};

// reads: nothing.
struct Fill {
  float number = 0.0F;
};

// reads: ids, a table (rows,columns). y (...,columns): the row of each id, a whole number from 0.
struct Gather {};

using Operation =
    std::variant<Conv2d, ConvTranspose2d, Matmul, Elementwise, Binary, Scalar, Pool2d,
                 AdaptivePool2d, Reduce, ChannelAffine, LayerNorm, GroupNorm, Softmax, Resize2d,
                 Copy, Fill, Gather>;

// "conv2d", "matmul", ...: the kind that cost tables and traces use.
const char* kind_of(const Operation& operation);

}  // namespace nnstretch
