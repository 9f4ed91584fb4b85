#include "onednn/epilogue.hpp"

namespace nnstretch::library {
namespace {

using dnnl::algorithm;

void append(dnnl::post_ops& operations, algorithm function, float alpha = 0.0F,
            float beta = 0.0F) {
#if DNNL_VERSION_MAJOR >= 3
  operations.append_eltwise(function, alpha, beta);
#else
  operations.append_eltwise(1.0F, function, alpha, beta);
#endif
}

void append_hardsigmoid(dnnl::post_ops& operations) {
  append(operations, algorithm::eltwise_linear, 1.0F / 6.0F, 0.5F);
  append(operations, algorithm::eltwise_clip, 0.0F, 1.0F);
}

}  // namespace

bool has_activation(const Activation& activation) {
  switch (activation.function) {
    case Function::identity:
    case Function::relu:
    case Function::clamp:
    case Function::silu:
    case Function::hardswish:
    case Function::hardsigmoid:
    case Function::sigmoid:
    case Function::gelu:
    case Function::leaky_relu:
    case Function::tanh:
      return true;
    case Function::elu:
      return activation.b == 1.0F;  // Its own has no factor inside the exponent.
    default:
      return false;
  }
}

void append_linear(dnnl::post_ops& operations, float factor, float shift) {
  append(operations, algorithm::eltwise_linear, factor, shift);
}

void append_activation(dnnl::post_ops& operations, const Activation& activation) {
  switch (activation.function) {
    case Function::relu: return append(operations, algorithm::eltwise_relu);
    case Function::clamp:
      return append(operations, algorithm::eltwise_clip, activation.a, activation.b);
    case Function::silu: return append(operations, algorithm::eltwise_swish, 1.0F);
    case Function::hardswish:
      return append(operations, algorithm::eltwise_hardswish, 1.0F / 6.0F, 0.5F);
    case Function::hardsigmoid: return append_hardsigmoid(operations);
    case Function::sigmoid: return append(operations, algorithm::eltwise_logistic);
    case Function::gelu: return append(operations, algorithm::eltwise_gelu_erf);
    case Function::elu: return append(operations, algorithm::eltwise_elu, activation.a);
    case Function::leaky_relu: return append(operations, algorithm::eltwise_relu, activation.a);
    case Function::tanh: return append(operations, algorithm::eltwise_tanh);
    default: return;
  }
}

dnnl::primitive_attr attributes_of(float scale, const Desc* residual,
                                   const Activation& activation) {
  dnnl::post_ops operations;
  if (scale != 1.0F) append_linear(operations, scale, 0.0F);
  if (residual) operations.append_binary(algorithm::binary_add, *residual);
  append_activation(operations, activation);
  dnnl::primitive_attr attributes;
  attributes.set_post_ops(operations);
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

}  // namespace nnstretch::library
