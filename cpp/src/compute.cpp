// One call: views become pointers, the kernel of its operation runs.
#include <algorithm>

#include "compute.hpp"
#include "kernels/kernels.hpp"
#include "nnstretch/network.hpp"

namespace nnstretch {
namespace {

constexpr int kMaxReads = 4;

float* base_of(const Network& network, const View& view, const Memory& memory) {
  switch (view.storage) {
    case Storage::none: return nullptr;
    case Storage::input: return const_cast<float*>(memory.inputs[view.slot]);
    case Storage::output: return memory.outputs[view.slot];
    case Storage::weights: return const_cast<float*>(network.weights().data());
    case Storage::arena: return memory.arena;
  }
  return nullptr;
}

kernels::Tensor resolve(const Network& network, const View& view, const Memory& memory) {
  kernels::Tensor tensor;
  if (!view.present()) return tensor;
  tensor.data = base_of(network, view, memory) + view.offset;
  tensor.rank = view.rank;
  std::copy(view.shape.begin(), view.shape.end(), tensor.shape);
  std::copy(view.stride.begin(), view.stride.end(), tensor.stride);
  return tensor;
}

struct Dispatch {
  const kernels::Table& table;
  kernels::Reads reads;
  const kernels::Tensor& y;
  const float* packed;
  float* scratch;

  void operator()(const Conv2d& conv) const { table.conv2d(conv, reads, y, packed, scratch); }
  void operator()(const ConvTranspose2d& conv) const { table.conv_transpose2d(conv, reads, y); }
  void operator()(const Matmul& matmul) const { table.matmul(matmul, reads, y, scratch); }
  void operator()(const Elementwise& operation) const { table.elementwise(operation, reads, y); }
  void operator()(const Binary& operation) const { table.binary(operation, reads, y); }
  void operator()(const Scalar& operation) const { table.scalar(operation, reads, y); }
  void operator()(const Pool2d& pool) const { table.pool2d(pool, reads, y); }
  void operator()(const AdaptivePool2d& pool) const { table.adaptive_pool2d(pool, reads, y); }
  void operator()(const Reduce& operation) const { table.reduce(operation, reads, y); }
  void operator()(const ChannelAffine& affine) const { table.channel_affine(affine, reads, y); }
  void operator()(const LayerNorm& norm) const { table.layer_norm(norm, reads, y); }
  void operator()(const GroupNorm& norm) const { table.group_norm(norm, reads, y); }
  void operator()(const Softmax& operation) const { table.softmax(operation, reads, y); }
  void operator()(const Resize2d& resize) const { table.resize2d(resize, reads, y); }
  void operator()(const Copy& operation) const { table.copy(operation, reads, y); }
  void operator()(const Fill& operation) const { table.fill(operation, reads, y); }
};

struct Kind {
  const char* operator()(const Conv2d&) const { return "conv2d"; }
  const char* operator()(const ConvTranspose2d&) const { return "conv_transpose2d"; }
  const char* operator()(const Matmul&) const { return "matmul"; }
  const char* operator()(const Elementwise&) const { return "elementwise"; }
  const char* operator()(const Binary&) const { return "binary"; }
  const char* operator()(const Scalar&) const { return "scalar"; }
  const char* operator()(const Pool2d&) const { return "pool2d"; }
  const char* operator()(const AdaptivePool2d&) const { return "adaptive_pool2d"; }
  const char* operator()(const Reduce&) const { return "reduce"; }
  const char* operator()(const ChannelAffine&) const { return "channel_affine"; }
  const char* operator()(const LayerNorm&) const { return "layer_norm"; }
  const char* operator()(const GroupNorm&) const { return "group_norm"; }
  const char* operator()(const Softmax&) const { return "softmax"; }
  const char* operator()(const Resize2d&) const { return "resize2d"; }
  const char* operator()(const Copy&) const { return "copy"; }
  const char* operator()(const Fill&) const { return "fill"; }
};

}  // namespace

void compute(const Network& network, std::size_t call, const Memory& memory, float* scratch) {
  const Call& current = network.calls()[call];
  kernels::Tensor reads[kMaxReads];
  const int count = std::min(kMaxReads, static_cast<int>(current.reads.size()));
  for (int i = 0; i < count; ++i)
    reads[i] = resolve(network, current.reads[static_cast<std::size_t>(i)], memory);
  const kernels::Tensor y = resolve(network, current.write, memory);
  compute_tensors(current.operation, {reads, count}, y, network.packed(call), scratch);
}

void compute_tensors(const Operation& operation, kernels::Reads reads, const kernels::Tensor& y,
                     const float* packed, float* scratch) {
  std::visit(Dispatch{kernels::table(), reads, y, packed, scratch}, operation);
}

const char* kind_of(const Operation& operation) { return std::visit(Kind{}, operation); }

std::size_t scratch_floats() { return kernels::kScratchFloats; }

const char* instruction_set() { return kernels::table().instruction_set; }

}  // namespace nnstretch
