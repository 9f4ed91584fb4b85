// Portable kernels, compiled once for each instruction set; plain pointers in, plain pointers out.
//
// Files with other instruction sets must not share inline functions of the standard library with
// the rest of the program, or the linker may keep the wrong one: kernels take plain structs only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nnstretch/operations.hpp"
#include "nnstretch/view.hpp"

namespace nnstretch::kernels {

// A view with its storage resolved.
struct Tensor {
  float* data = nullptr;
  int rank = 0;
  std::int64_t shape[kMaxRank] = {};
  std::int64_t stride[kMaxRank] = {};
};

// Floats of working memory that every kernel may use, 64-byte aligned.
constexpr std::size_t kScratchFloats = 256 * 512 + 256 * 256 + 4096;

struct Reads {
  const Tensor* tensors = nullptr;  // Absent ones have no data.
  int count = 0;
};

struct Table {
  const char* instruction_set;
  std::size_t (*packed_floats)(const Conv2d&, const Tensor& weight);
  void (*pack)(const Conv2d&, const Tensor& weight, float* packed);
  void (*conv2d)(const Conv2d&, Reads, const Tensor& y, const float* packed, float* scratch);
  void (*conv_transpose2d)(const ConvTranspose2d&, Reads, const Tensor& y);
  void (*matmul)(const Matmul&, Reads, const Tensor& y, float* scratch);
  void (*elementwise)(const Elementwise&, Reads, const Tensor& y);
  void (*binary)(const Binary&, Reads, const Tensor& y);
  void (*scalar)(const Scalar&, Reads, const Tensor& y);
  void (*pool2d)(const Pool2d&, Reads, const Tensor& y);
  void (*adaptive_pool2d)(const AdaptivePool2d&, Reads, const Tensor& y);
  void (*reduce)(const Reduce&, Reads, const Tensor& y);
  void (*channel_affine)(const ChannelAffine&, Reads, const Tensor& y);
  void (*layer_norm)(const LayerNorm&, Reads, const Tensor& y);
  void (*group_norm)(const GroupNorm&, Reads, const Tensor& y);
  void (*softmax)(const Softmax&, Reads, const Tensor& y);
  void (*resize2d)(const Resize2d&, Reads, const Tensor& y);
  void (*copy)(const Copy&, Reads, const Tensor& y);
  void (*fill)(const Fill&, Reads, const Tensor& y);
};

// The fastest set that this processor has.
const Table& table();

}  // namespace nnstretch::kernels
