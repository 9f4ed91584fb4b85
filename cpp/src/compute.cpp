// One call on resolved tensors: the portable kernel of its operation runs.
#include "compute.hpp"

#include <cstdio>

#include "kernels/kernels.hpp"
#include "library.hpp"
#include "nnstretch/error.hpp"
#include "nnstretch/network.hpp"

namespace nnstretch {
namespace {

// The number of a table's row. Throws Error for what is none.
std::int64_t row_of(float id, std::int64_t rows) {
  if (id >= 0.0F && id < static_cast<float>(rows)) {
    const auto row = static_cast<std::int64_t>(id);
    if (static_cast<float>(row) == id) return row;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(id));
  throw Error(Status::bad_input,
              std::string("id ") + text + " is no row of a table of " + std::to_string(rows));
}

void gather(kernels::Reads reads, const kernels::Tensor& y) {
  const kernels::Tensor &ids = reads.tensors[0], &table = reads.tensors[1];
  std::int64_t count = 1;
  for (int axis = 0; axis < ids.rank; ++axis) count *= ids.shape[axis];
  for (std::int64_t number = 0; number < count; ++number) {
    std::int64_t rest = number, from = 0, to = 0;
    for (int axis = ids.rank; axis-- > 0;) {
      const std::int64_t index = rest % ids.shape[axis];
      rest /= ids.shape[axis];
      from += index * ids.stride[axis];
      to += index * y.stride[axis];
    }
    const float* source = table.data + row_of(ids.data[from], table.shape[0]) * table.stride[0];
    for (std::int64_t column = 0; column < table.shape[1]; ++column)
      y.data[to + column * y.stride[ids.rank]] = source[column * table.stride[1]];
  }
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
  void operator()(const Gather&) const { gather(reads, y); }
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
  const char* operator()(const Gather&) const { return "gather"; }
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
