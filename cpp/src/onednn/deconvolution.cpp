#include "onednn/epilogue.hpp"
#include "onednn/kernels.hpp"

namespace nnstretch::library {
namespace {

using DeconvolutionForward = dnnl::deconvolution_forward;

struct Weight {
  Dims dims;
  Desc given;
};

// PyTorch has (C,O/groups,kh,kw), oneDNN counts (groups,O/groups,C/groups,kh,kw).
Weight weight_of(const ConvTranspose2d& conv, const View& view) {
  const std::int64_t in = view.shape[0] / conv.groups, out = view.shape[1];
  const std::int64_t height = view.shape[2], width = view.shape[3];
  const std::int64_t taps = height * width;
  Dims dims{conv.groups, out, in, height, width};
  Dims stride{in * out * taps, taps, out * taps, width, 1};
  if (conv.groups == 1) {
    dims.erase(dims.begin());
    stride.erase(stride.begin());
  }
  return {dims, Desc(dims, dnnl::memory::data_type::f32, stride)};
}

// What of the full result is cut off behind; below 0 where rows are added there.
std::int64_t behind(const ConvTranspose2d& conv, const View& x, const View& weight, const View& y,
                    std::size_t axis) {
  const std::size_t size = axis + 2;
  const std::int64_t full = (x.shape[size] - 1) * conv.stride[axis] +
                            (weight.shape[size] - 1) * conv.dilation[axis] + 1;
  return full - conv.padding[axis] - y.shape[size];
}

DeconvolutionForward::primitive_desc choose(const ConvTranspose2d& conv, const Request& request,
                               const Weight& weight, const Desc& x, const Desc& y,
                               const Desc& bias) {
  const std::vector<View>& reads = request.call.reads;
  const View& write = request.call.write;
  const Dims stride{conv.stride[0], conv.stride[1]};
  const Dims dilation{conv.dilation[0] - 1, conv.dilation[1] - 1};
  const Dims before{conv.padding[0], conv.padding[1]};
  const Dims after{behind(conv, reads[0], reads[1], write, 0),
                   behind(conv, reads[0], reads[1], write, 1)};
  const dnnl::primitive_attr attributes = attributes_of(1.0F, nullptr, conv.activation);
  const auto kind = dnnl::prop_kind::forward_inference;
  const auto algorithm = dnnl::algorithm::deconvolution_direct;
#if DNNL_VERSION_MAJOR >= 3
  return DeconvolutionForward::primitive_desc(engine(), kind, algorithm, x, any_of(weight.dims), bias, y, stride,
                                 dilation, before, after, attributes);
#else
  const DeconvolutionForward::desc described(kind, algorithm, x, any_of(weight.dims), bias, y, stride, dilation,
                                before, after);
  return DeconvolutionForward::primitive_desc(described, attributes, engine());
#endif
}

}  // namespace

bool offers_deconvolution(const ConvTranspose2d& conv, const Call& call) {
  return constant_weights(call) && has_activation(conv.activation);
}

std::unique_ptr<Kernel> deconvolution(const ConvTranspose2d& conv, const Request& request) {
  const std::vector<View>& reads = request.call.reads;
  const bool has_bias = reads.size() > 2 && reads[2].present();
  const Weight weight = weight_of(conv, reads[1]);
  const Desc bias = has_bias ? dense_of({request.call.write.shape[1]}) : Desc();
  const DeconvolutionForward::primitive_desc chosen =
      choose(conv, request, weight, preferred(reads[0], request.reads[0]),
             preferred(request.call.write, request.write), bias);
  if (!is_fast(chosen.impl_info_str())) return nullptr;
  auto steps = std::make_unique<Steps>();
  const Place x = steps->read(request, 0, chosen.src_desc());
  const Place packed =
      steps->weights(request.weights + reads[1].offset, weight.given, chosen.weights_desc());
  const Place y = steps->write(request, chosen.dst_desc());
  std::vector<Argument> arguments{{DNNL_ARG_SRC, x, chosen.src_desc()},
                                  {DNNL_ARG_WEIGHTS, packed, chosen.weights_desc()},
                                  {DNNL_ARG_DST, y, chosen.dst_desc()}};
  if (has_bias) arguments.push_back({DNNL_ARG_BIAS, {In::read, 2}, bias});
  steps->add(DeconvolutionForward(chosen), chosen.scratchpad_desc(), std::move(arguments));
  steps->finish_write(request, y, chosen.dst_desc());
  return steps;
}

}  // namespace nnstretch::library
