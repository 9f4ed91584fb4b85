// One call on resolved tensors: the portable kernel of its operation runs.
#include "compute.hpp"

#include "kernels/kernels.hpp"
#include "library.hpp"
#include "nnstretch/network.hpp"

namespace nnstretch {
namespace {

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

void compute_tensors(const Operation& operation, kernels::Reads reads, const kernels::Tensor& y,
                     const float* packed, float* scratch) {
  std::visit(Dispatch{kernels::table(), reads, y, packed, scratch}, operation);
}

const char* kind_of(const Operation& operation) { return std::visit(Kind{}, operation); }

const char* instruction_set() { return kernels::table().instruction_set; }

const char* kernel_library() { return library::name(); }

}  // namespace nnstretch
