#include <algorithm>

#include "onednn/epilogue.hpp"
#include "onednn/kernels.hpp"

namespace nnstretch::library {
namespace {

using PoolingForward = dnnl::pooling_forward;

// What must lie behind the map so that the last window fits, at least 0.
std::int64_t behind(const Pool2d& pool, const View& x, const View& y, std::size_t axis) {
  const std::size_t size = axis + 2;
  const std::int64_t end =
      (y.shape[size] - 1) * pool.stride[axis] + pool.window[axis] - pool.padding[axis];
  return std::max<std::int64_t>(0, end - x.shape[size]);
}

dnnl::algorithm algorithm_of(const Pool2d& pool) {
  return pool.count_padding ? dnnl::algorithm::pooling_avg_include_padding
                            : dnnl::algorithm::pooling_avg_exclude_padding;
}

PoolingForward::primitive_desc choose(const Pool2d& pool, const Request& request, const Desc& x,
                               const Desc& y) {
  const View& read = request.call.reads[0];
  const View& write = request.call.write;
  const Dims stride{pool.stride[0], pool.stride[1]};
  const Dims window{pool.window[0], pool.window[1]};
  const Dims before{pool.padding[0], pool.padding[1]};
  const Dims after{behind(pool, read, write, 0), behind(pool, read, write, 1)};
  const dnnl::primitive_attr attributes = attributes_of(1.0F, nullptr, {});
  const auto kind = dnnl::prop_kind::forward_inference;
#if DNNL_VERSION_MAJOR >= 3
  return PoolingForward::primitive_desc(engine(), kind, algorithm_of(pool), x, y, stride, window, {0, 0},
                                 before, after, attributes);
#else
  const PoolingForward::desc described(kind, algorithm_of(pool), x, y, stride, window, before, after);
  return PoolingForward::primitive_desc(described, attributes, engine());
#endif
}

}  // namespace

// Averages only: its largest of -infinity is the least finite number, and NaN is passed over.
bool offers_pool(const Pool2d& pool, const Call& call) {
  if (pool.pooling != Pooling::average) return false;
  if (block() == 0 || pool.dilation[0] != 1 || pool.dilation[1] != 1 || pool.divisor != 0)
    return false;
  if (call.reads[0].shape[1] % block() != 0) return false;
  // Where a window reaches beyond the padding, PyTorch divides by less than oneDNN.
  return !pool.count_padding || (behind(pool, call.reads[0], call.write, 0) <= pool.padding[0] &&
                                 behind(pool, call.reads[0], call.write, 1) <= pool.padding[1]);
}

std::unique_ptr<Kernel> pooling(const Pool2d& pool, const Request& request) {
  View x_blocks = request.call.reads[0];
  View y_blocks = request.call.write;
  const bool plain =
      request.reads[0] == Layout::plain && request.write == Layout::plain;
  if (plain) return nullptr;
  const auto blocked = [](const View& view) {
    using Tag = dnnl::memory::format_tag;
    return Desc(dims_of(view), dnnl::memory::data_type::f32,
                block() == 16 ? Tag::nChw16c : Tag::nChw8c);
  };
  const PoolingForward::primitive_desc chosen =
      choose(pool, request, blocked(x_blocks), blocked(y_blocks));
  if (!is_fast(chosen.impl_info_str())) return nullptr;
  auto steps = std::make_unique<Steps>();
  const Place x = steps->read(request, 0, chosen.src_desc());
  const Place y = steps->write(request, chosen.dst_desc());
  steps->add(PoolingForward(chosen), chosen.scratchpad_desc(),
             {{DNNL_ARG_SRC, x, chosen.src_desc()}, {DNNL_ARG_DST, y, chosen.dst_desc()}});
  steps->finish_write(request, y, chosen.dst_desc());
  return steps;
}

}  // namespace nnstretch::library
