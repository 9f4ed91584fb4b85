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

std::string pair_of(const std::array<std::int64_t, 2>& values) {
  return std::to_string(values[0]) + "x" + std::to_string(values[1]);
}

// What shapes do not say.
struct Details {
  std::string operator()(const Conv2d& conv) const {
    return " stride " + pair_of(conv.stride) + " dilation " + pair_of(conv.dilation) + " groups " +
           std::to_string(conv.groups);
  }
  std::string operator()(const ConvTranspose2d& conv) const {
    return " stride " + pair_of(conv.stride) + " groups " + std::to_string(conv.groups);
  }
  std::string operator()(const Pool2d& pool) const {
    return " window " + pair_of(pool.window) + " stride " + pair_of(pool.stride);
  }
  template <typename Other>
  std::string operator()(const Other&) const {
    return "";
  }
};

}  // namespace

std::string signature(const Call& call) {
  std::string text = kind_of(call.operation);
  for (const View& view : call.reads) text += " " + shape_of(view);
  return text + " -> " + shape_of(call.write) + std::visit(Details{}, call.operation);
}

}  // namespace nnstretch
