#include <cstring>

#include "onednn/epilogue.hpp"
#include "onednn/kernels.hpp"

namespace nnstretch::library {
namespace {

using ConvolutionForward = dnnl::convolution_forward;

// Operands of a convolution as it is made: `any` first, then what oneDNN chose.
struct Operands {
  Desc x, weight, bias, y;
};

struct Geometry {
  Dims stride, dilation, before, after;
};

Geometry geometry_of(const Conv2d& conv) {
  return {{conv.stride[0], conv.stride[1]},
          {conv.dilation[0] - 1, conv.dilation[1] - 1},
          {conv.padding[0], conv.padding[1]},
          {conv.padding[2], conv.padding[3]}};
}

ConvolutionForward::primitive_desc choose(const Geometry& geometry, const Operands& operands,
                               const dnnl::primitive_attr& attributes) {
  const auto kind = dnnl::prop_kind::forward_inference;
  const auto algorithm = dnnl::algorithm::convolution_direct;
#if DNNL_VERSION_MAJOR >= 3
  return ConvolutionForward::primitive_desc(engine(), kind, algorithm, operands.x, operands.weight,
                                 operands.bias, operands.y, geometry.stride, geometry.dilation,
                                 geometry.before, geometry.after, attributes);
#else
  const ConvolutionForward::desc described(kind, algorithm, operands.x, operands.weight, operands.bias,
                                operands.y, geometry.stride, geometry.dilation, geometry.before,
                                geometry.after);
  return ConvolutionForward::primitive_desc(described, attributes, engine());
#endif
}

// (O,C/groups,kh,kw) as (groups,O/groups,C/groups,kh,kw): the same numbers.
Dims weight_dims(const Conv2d& conv, const View& weight) {
  const Dims dims = dims_of(weight);
  if (conv.groups == 1) return dims;
  return {conv.groups, dims[0] / conv.groups, dims[1], dims[2], dims[3]};
}

// Where no kernel of oneDNN's takes the channels of a group, it multiplies matrices group by group,
// and what follows is computed number by number: 1.5 to 5 times as long as the portable kernel.
bool is_slow(const Conv2d& conv, const char* implementation) {
  return conv.groups > 1 && conv.activation.function != Function::identity &&
         std::strstr(implementation, "gemm");
}

bool few_channels(const View& view, std::int64_t groups) {
  return groups == 1 && view.shape[1] <= 4;
}

}  // namespace

bool offers_convolution(const Conv2d& conv, const Call& call) {
  return constant_weights(call) && has_activation(conv.activation);
}

std::unique_ptr<Kernel> convolution(const Conv2d& conv, const Request& request) {
  const std::vector<View>& reads = request.call.reads;
  const bool has_bias = reads.size() > 2 && reads[2].present();
  const bool has_residual = reads.size() > 3 && reads[3].present();
  const Geometry geometry = geometry_of(conv);
  const Dims sizes = weight_dims(conv, reads[1]);
  const Desc x_given = desc_of(reads[0], request.reads[0]);
  Operands operands{few_channels(reads[0], conv.groups) ? x_given
                                                        : preferred(reads[0], request.reads[0]),
                    any_of(sizes), has_bias ? dense_of({reads[1].shape[0]}) : Desc(),
                    preferred(request.call.write, request.write)};
  ConvolutionForward::primitive_desc chosen =
      choose(geometry, operands, attributes_of(1.0F, nullptr, conv.activation));
  if (has_residual) {
    operands.x = chosen.src_desc();
    operands.y = chosen.dst_desc();
    const Desc residual = operands.y;
    chosen = choose(geometry, operands, attributes_of(1.0F, &residual, conv.activation));
  }
  const char* implementation = chosen.impl_info_str();
  if (!is_fast(implementation) || is_slow(conv, implementation)) return nullptr;
  auto steps = std::make_unique<Steps>();
  const Place x = steps->read(request, 0, chosen.src_desc());
  const Place weight =
      steps->weights(request.weights + reads[1].offset, dense_of(sizes), chosen.weights_desc());
  const Place y = steps->write(request, chosen.dst_desc());
  std::vector<Argument> arguments{{DNNL_ARG_SRC, x, chosen.src_desc()},
                                  {DNNL_ARG_WEIGHTS, weight, chosen.weights_desc()},
                                  {DNNL_ARG_DST, y, chosen.dst_desc()}};
  if (has_bias) arguments.push_back({DNNL_ARG_BIAS, {In::read, 2}, operands.bias});
  if (has_residual)
    arguments.push_back({DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1,
                         steps->read(request, 3, chosen.dst_desc()), chosen.dst_desc()});
  steps->add(ConvolutionForward(chosen), chosen.scratchpad_desc(), std::move(arguments));
  steps->finish_write(request, y, chosen.dst_desc());
  return steps;
}

}  // namespace nnstretch::library
