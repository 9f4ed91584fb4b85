#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "nnstretch/network.hpp"

namespace nnstretch {
namespace {

std::string shape_of(const View& view) {
  if (!view.present()) return "-";
  std::string text;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (axis > 0) text += 'x';
    text += std::to_string(view.shape[static_cast<std::size_t>(axis)]);
  }
  return text.empty() ? "scalar" : text;
}

template <std::size_t count>
std::string sizes_text(const char* name, const std::array<std::int64_t, count>& values) {
  std::string text;
  for (const std::int64_t value : values) text += (text.empty() ? "" : "x") + std::to_string(value);
  return " " + std::string(name) + " " + text;
}

// Nothing is said of the identity.
std::string word_of(const Activation& activation) {
  static const char* const names[] = {
      "", "relu", "clamp", "silu", "hardswish", "hardsigmoid", "sigmoid", "gelu", "gelu_tanh",
      "elu", "selu", "leaky_relu", "mish", "tanh", "softplus", "softsign", "exp", "log", "sqrt",
      "rsqrt", "negate", "abs", "power", "reciprocal", "sin", "cos", "erf", "log1p", "expm1",
      "sign", "floor", "ceil", "trunc", "round"};
  static_assert(sizeof names / sizeof *names == static_cast<std::size_t>(Function::round) + 1,
                "a function has no name");
  const auto index = static_cast<std::size_t>(activation.function);
  return index == 0 ? "" : " " + std::string(names[index]);
}

std::string word_of(Arithmetic arithmetic) {
  static const char* const names[] = {"add",    "subtract", "multiply", "divide",
                                      "maximum", "minimum", "prelu"};
  static_assert(sizeof names / sizeof *names == static_cast<std::size_t>(Arithmetic::prelu) + 1,
                "an arithmetic has no name");
  return " " + std::string(names[static_cast<std::size_t>(arithmetic)]);
}

std::string word_of(Pooling pooling) { return pooling == Pooling::max ? " max" : " average"; }

std::string word_of(Reduction reduction) {
  static const char* const names[] = {"mean", "sum", "max", "norm2"};
  return " " + std::string(names[static_cast<std::size_t>(reduction)]);
}

std::string word_of(Interpolation interpolation) {
  static const char* const names[] = {"nearest", "bilinear", "nearest_exact"};
  return " " + std::string(names[static_cast<std::size_t>(interpolation)]);
}

// What shapes do not say. Calls that differ by numbers alone (bounds, slopes, factors, how a pool counts
// its padding) take equally long and share costs.
struct Details {
  template <typename Window>
  static std::string window_of(const Window& from) {
    return sizes_text("stride", from.stride) + sizes_text("padding", from.padding) +
           sizes_text("dilation", from.dilation);
  }
  std::string operator()(const Conv2d& conv) const {
    return window_of(conv) + " groups " + std::to_string(conv.groups) + word_of(conv.activation);
  }
  std::string operator()(const ConvTranspose2d& conv) const {
    return window_of(conv) + " groups " + std::to_string(conv.groups) + word_of(conv.activation);
  }
  std::string operator()(const Matmul& matmul) const { return word_of(matmul.activation); }
  std::string operator()(const Elementwise& call) const { return word_of(call.activation); }
  std::string operator()(const Binary& call) const {
    return word_of(call.arithmetic) + word_of(call.activation);
  }
  std::string operator()(const Scalar& call) const {
    return word_of(call.arithmetic) + (call.reversed ? " reversed" : "") + word_of(call.activation);
  }
  std::string operator()(const Pool2d& pool) const {
    return word_of(pool.pooling) + sizes_text("window", pool.window) + window_of(pool);
  }
  std::string operator()(const AdaptivePool2d& pool) const { return word_of(pool.pooling); }
  std::string operator()(const Reduce& call) const {
    return word_of(call.reduction) + " axes " + std::to_string(call.axes);
  }
  std::string operator()(const ChannelAffine& call) const { return word_of(call.activation); }
  std::string operator()(const LayerNorm& norm) const {
    return " axes " + std::to_string(norm.axes);
  }
  std::string operator()(const GroupNorm& norm) const {
    return " groups " + std::to_string(norm.groups);
  }
  std::string operator()(const Softmax& call) const { return call.logarithm ? " logarithm" : ""; }
  std::string operator()(const Resize2d& resize) const {
    return word_of(resize.interpolation);
  }
  std::string operator()(const Copy&) const { return ""; }
  std::string operator()(const Fill&) const { return ""; }
  std::string operator()(const Gather&) const { return ""; }
};

}  // namespace

std::string signature(const Call& call) {
  std::string text = kind_of(call.operation);
  for (const View& view : call.reads) text += " " + shape_of(view);
  return text + " -> " + shape_of(call.write) + std::visit(Details{}, call.operation);
}

}  // namespace nnstretch
