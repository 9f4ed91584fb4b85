#include "c_call.hpp"

#include <algorithm>
#include <cstdint>

namespace nnstretch {
namespace {

nns_attributes defaults() {
  nns_attributes attributes{};
  attributes.stride[0] = attributes.stride[1] = 1;
  attributes.dilation[0] = attributes.dilation[1] = 1;
  attributes.window[0] = attributes.window[1] = 1;
  attributes.groups = attributes.axes = 1;
  attributes.scale = attributes.ratio[0] = attributes.ratio[1] = 1.0F;
  attributes.epsilon = 1e-5F;
  return attributes;
}

// An operation's struct to attributes.
struct Flatten {
  nns_attributes& to;

  void activation(const Activation& from) const {
    to.function = static_cast<std::int32_t>(from.function);
    to.a = from.a;
    to.b = from.b;
  }
  template <typename Window>
  void window(const Window& from) const {
    std::copy(from.stride.begin(), from.stride.end(), to.stride);
    std::copy(from.padding.begin(), from.padding.end(), to.padding);
    std::copy(from.dilation.begin(), from.dilation.end(), to.dilation);
  }
  void operator()(const Conv2d& from) const {
    window(from);
    to.groups = from.groups;
    activation(from.activation);
  }
  void operator()(const ConvTranspose2d& from) const {
    window(from);
    to.groups = from.groups;
    activation(from.activation);
  }
  void operator()(const Matmul& from) const {
    to.scale = from.scale;
    activation(from.activation);
  }
  void operator()(const Elementwise& from) const { activation(from.activation); }
  void operator()(const Binary& from) const {
    to.arithmetic = static_cast<std::int32_t>(from.arithmetic);
    to.scale = from.scale;
    activation(from.activation);
  }
  void operator()(const Scalar& from) const {
    to.arithmetic = static_cast<std::int32_t>(from.arithmetic);
    to.number = from.number;
    to.flag = from.reversed;
    activation(from.activation);
  }
  void operator()(const Pool2d& from) const {
    window(from);
    std::copy(from.window.begin(), from.window.end(), to.window);
    to.kind = static_cast<std::int32_t>(from.pooling);
    to.flag = from.count_padding;
    to.divisor = from.divisor;
  }
  void operator()(const AdaptivePool2d& from) const {
    to.kind = static_cast<std::int32_t>(from.pooling);
  }
  void operator()(const Reduce& from) const {
    to.kind = static_cast<std::int32_t>(from.reduction);
    to.axes = from.axes;
  }
  void operator()(const ChannelAffine& from) const { activation(from.activation); }
  void operator()(const LayerNorm& from) const {
    to.axes = from.axes;
    to.epsilon = from.epsilon;
  }
  void operator()(const GroupNorm& from) const {
    to.groups = from.groups;
    to.epsilon = from.epsilon;
  }
  void operator()(const Softmax& from) const { to.flag = from.logarithm; }
  void operator()(const Resize2d& from) const {
    to.kind = static_cast<std::int32_t>(from.interpolation);
    to.flag = from.align_corners;
    std::copy(from.scale.begin(), from.scale.end(), to.ratio);
  }
  void operator()(const Copy&) const {}
  void operator()(const Fill& from) const { to.number = from.number; }
  void operator()(const Gather&) const {}
};

nns_tensor c_tensor(const View& view) {
  nns_tensor tensor{};
  tensor.rank = view.rank;
  std::copy(view.shape.begin(), view.shape.end(), tensor.sizes);
  std::copy(view.stride.begin(), view.stride.end(), tensor.strides);
  return tensor;
}

float* data_of(const Network& network, const View& view, const Memory& memory) {
  switch (view.storage) {
    case Storage::none: return nullptr;
    case Storage::input: return const_cast<float*>(memory.inputs[view.slot]) + view.offset;
    case Storage::output: return memory.outputs[view.slot] + view.offset;
    case Storage::weights: return const_cast<float*>(network.weights().data()) + view.offset;
    case Storage::arena: return memory.arena + view.offset;
  }
  return nullptr;
}

}  // namespace

nns_call c_call(const Network& network, const Call& call) {
  nns_call result{};
  result.operation = static_cast<std::int32_t>(call.operation.index());
  result.attributes = defaults();
  std::visit(Flatten{result.attributes}, call.operation);
  result.reads_count = static_cast<std::int32_t>(std::min<std::size_t>(call.reads.size(), 4));
  for (int i = 0; i < result.reads_count; ++i) {
    const View& view = call.reads[static_cast<std::size_t>(i)];
    result.reads[i] = c_tensor(view);
    if (view.storage == Storage::weights) result.reads[i].data = data_of(network, view, {});
  }
  result.write = c_tensor(call.write);
  return result;
}

void resolve(const Network& network, const Call& call, const Memory& memory, nns_call& target) {
  for (int i = 0; i < target.reads_count; ++i)
    target.reads[i].data = data_of(network, call.reads[static_cast<std::size_t>(i)], memory);
  target.write.data = data_of(network, call.write, memory);
}

kernels::Tensor tensor_of(const nns_tensor& tensor) {
  kernels::Tensor result;
  if (!tensor.data) return result;
  result.data = tensor.data;
  result.rank = tensor.rank;
  std::copy(tensor.sizes, tensor.sizes + tensor.rank, result.shape);
  std::copy(tensor.strides, tensor.strides + tensor.rank, result.stride);
  return result;
}

Call call_of(const Operation& operation, const nns_call& call) {
  const auto view_of = [](const nns_tensor& tensor) {
    View view;
    if (!tensor.data) return view;
    view.storage = Storage::arena;
    view.rank = tensor.rank;
    std::copy(tensor.sizes, tensor.sizes + tensor.rank, view.shape.begin());
    std::copy(tensor.strides, tensor.strides + tensor.rank, view.stride.begin());
    return view;
  };
  Call result{"call", operation, {}, view_of(call.write)};
  int count = call.reads_count;
  while (count > 0 && !call.reads[count - 1].data) --count;
  for (int i = 0; i < count; ++i) result.reads.push_back(view_of(call.reads[i]));
  return result;
}

std::size_t extent(const nns_tensor& tensor) {
  std::size_t end = 1;
  for (int axis = 0; axis < tensor.rank; ++axis)
    end += static_cast<std::size_t>((tensor.sizes[axis] - 1) * tensor.strides[axis]);
  return end;
}

namespace {

constexpr std::uintptr_t kFloat = sizeof(float);

// Bytes from the first to one past the last on a circle of `circle` bytes that is walked round and
// round: axes whose strides lead back to their start take no room on it.
std::uintptr_t bytes_round(const nns_tensor& tensor, std::uintptr_t circle) {
  std::uintptr_t bytes = kFloat;
  for (int axis = 0; axis < tensor.rank; ++axis) {
    const std::uintptr_t step = static_cast<std::uintptr_t>(tensor.strides[axis]) * kFloat;
    if (step % circle != 0) bytes += static_cast<std::uintptr_t>(tensor.sizes[axis] - 1) * step;
  }
  return bytes;
}

// Whether no byte of one lies at the same place of the circle as one of the other.
bool apart_round(const nns_tensor& a, const nns_tensor& b, std::uintptr_t circle) {
  const auto first = reinterpret_cast<std::uintptr_t>(a.data);
  const auto second = reinterpret_cast<std::uintptr_t>(b.data);
  const std::uintptr_t a_bytes = bytes_round(a, circle), b_bytes = bytes_round(b, circle);
  if (a_bytes > circle || b_bytes > circle) return false;
  // How far the second begins behind the first.
  const std::uintptr_t behind = second >= first ? (second - first) % circle
                                                : (circle - (first - second) % circle) % circle;
  return behind >= a_bytes && behind + b_bytes <= circle;
}

// Whether a stride of the first tells them apart: that of images does parts of one batch, that of
// columns numbers that take turns.
bool told_apart(const nns_tensor& a, const nns_tensor& b) {
  for (int axis = 0; axis < a.rank; ++axis)
    if (a.sizes[axis] > 1 && a.strides[axis] > 0 &&
        apart_round(a, b, static_cast<std::uintptr_t>(a.strides[axis]) * kFloat))
      return true;
  return false;
}

}  // namespace

bool overlap(const nns_tensor& a, const nns_tensor& b) {
  if (!a.data || !b.data) return false;
  if (a.data == b.data) return true;
  const auto first = reinterpret_cast<std::uintptr_t>(a.data);
  const auto second = reinterpret_cast<std::uintptr_t>(b.data);
  if (first + extent(a) * kFloat <= second || second + extent(b) * kFloat <= first) return false;
  return !told_apart(a, b) && !told_apart(b, a);
}

}  // namespace nnstretch

extern "C" {

nns_attributes nns_defaults(void) { return nnstretch::defaults(); }

nns_tensor nns_absent(void) { return {}; }

nns_tensor nns_dense(float* data, int32_t rank, const int64_t* sizes) {
  constexpr std::int64_t kMost = std::int64_t{1} << 48;
  nns_tensor tensor{};
  tensor.data = data;
  tensor.rank = rank >= 0 && rank <= NNS_MOST_AXES && (sizes || rank == 0) ? rank : -1;
  std::int64_t step = 1;
  for (int axis = tensor.rank; axis-- > 0;) {
    if (sizes[axis] < 1 || sizes[axis] > kMost / step) {
      tensor.rank = -1;
      return tensor;
    }
    tensor.sizes[axis] = sizes[axis];
    tensor.strides[axis] = step;
    step *= sizes[axis];
  }
  return tensor;
}
}
