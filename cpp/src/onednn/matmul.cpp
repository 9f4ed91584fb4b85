#include <algorithm>

#include "onednn/epilogue.hpp"
#include "onednn/kernels.hpp"

namespace nnstretch::library {
namespace {

constexpr std::int64_t kFewRows = 3;  // Up to here it reads weights once, in whatever order.

using Chosen = dnnl::matmul::primitive_desc;

// MatrixOperands without leading axes of size 1.
struct MatrixOperands {
  Desc a, b, bias, residual, y;
};

// A stride of 0 before rows and columns repeats a matrix: oneDNN knows that as a size of 1.
Desc matrices(const View& view, std::size_t first) {
  Dims dims, strides;
  for (std::size_t axis = first; axis < static_cast<std::size_t>(view.rank); ++axis) {
    const bool repeated = view.stride[axis] == 0;
    dims.push_back(repeated ? 1 : view.shape[axis]);
    strides.push_back(repeated ? 1 : view.stride[axis]);
  }
  return Desc(dims, dnnl::memory::data_type::f32, strides);
}

std::size_t first_axis(const View& write) {
  const auto rows = static_cast<std::size_t>(write.rank - 2);
  std::size_t first = 0;
  while (first < rows && write.shape[first] == 1) ++first;
  return first;
}

// A row or a column repeated inside a matrix, which oneDNN would take for one alone.
bool repeats_inside(const View& view) {
  const auto rank = static_cast<std::size_t>(view.rank);
  for (std::size_t axis = rank - 2; axis < rank; ++axis)
    if (view.stride[axis] == 0 && view.shape[axis] > 1) return true;
  return false;
}

bool is_there(const Call& call, std::size_t read) {
  return call.reads.size() > read && call.reads[read].present();
}

MatrixOperands operands_of(const Call& call) {
  const std::size_t first = first_axis(call.write);
  MatrixOperands operands{matrices(call.reads[0], first), matrices(call.reads[1], first), Desc(), Desc(),
                    matrices(call.write, first)};
  Dims bias(static_cast<std::size_t>(call.write.rank) - first, 1);
  bias.back() = call.write.shape[static_cast<std::size_t>(call.write.rank - 1)];
  if (is_there(call, 2)) operands.bias = dense_of(bias);
  if (is_there(call, 3)) operands.residual = matrices(call.reads[3], first);
  return operands;
}

Desc any_like(const Desc& given) {
#if DNNL_VERSION_MAJOR >= 3
  return any_of(given.get_dims());
#else
  return any_of(given.dims());
#endif
}

Chosen choose(const Matmul& matmul, const MatrixOperands& operands, const Desc& a, const Desc& b) {
  const bool has_residual = operands.residual.get_size() > 0;
  const dnnl::primitive_attr attributes = attributes_of(
      matmul.scale, has_residual ? &operands.residual : nullptr, matmul.activation);
#if DNNL_VERSION_MAJOR >= 3
  return Chosen(engine(), a, b, operands.bias, operands.y, attributes);
#else
  const dnnl::matmul::desc described(a, b, operands.bias, operands.y);
  return Chosen(described, attributes, engine());
#endif
}

// MatrixOperands as they lie where that is fast, else as oneDNN likes them.
Chosen fastest(const Matmul& matmul, const MatrixOperands& operands, bool constant) {
  const Desc b = constant ? any_like(operands.b) : operands.b;
  const Chosen as_given = choose(matmul, operands, operands.a, b);
  if (is_fast(as_given.impl_info_str())) return as_given;
  return choose(matmul, operands, any_like(operands.a), any_like(operands.b));
}

}  // namespace

bool offers_matmul(const Matmul& matmul, const Call& call) {
  const auto rows = static_cast<std::size_t>(call.write.rank - 2);
  // oneDNN would scale the bias, too.
  const bool scaled_bias = matmul.scale != 1.0F && is_there(call, 2);
  const bool repeated = repeats_inside(call.reads[0]) || repeats_inside(call.reads[1]);
  return has_activation(matmul.activation) && call.write.shape[rows] > kFewRows && !scaled_bias &&
         !repeated;
}

std::unique_ptr<Kernel> matrix_product(const Matmul& matmul, const Request& request) {
  const std::vector<View>& reads = request.call.reads;
  const bool constant = reads[1].storage == Storage::weights;
  const MatrixOperands operands = operands_of(request.call);
  const Chosen chosen = fastest(matmul, operands, constant);
  if (!is_fast(chosen.impl_info_str())) return nullptr;
  auto steps = std::make_unique<Steps>();
  const Desc a = chosen.src_desc(), b = chosen.weights_desc();
  const Place right = constant ? steps->weights(request.weights + reads[1].offset, operands.b, b)
                               : steps->read_as(1, operands.b, b);
  std::vector<Argument> arguments{{DNNL_ARG_SRC, steps->read_as(0, operands.a, a), a},
                                  {DNNL_ARG_WEIGHTS, right, b},
                                  {DNNL_ARG_DST, {In::write, 0}, operands.y}};
  if (is_there(request.call, 2)) arguments.push_back({DNNL_ARG_BIAS, {In::read, 2}, operands.bias});
  if (is_there(request.call, 3)) {
    const int position = matmul.scale == 1.0F ? 0 : 1;
    arguments.push_back({DNNL_ARG_ATTR_MULTIPLE_POST_OP(position) | DNNL_ARG_SRC_1,
                         {In::read, 3},
                         operands.residual});
  }
  steps->add(dnnl::matmul(chosen), chosen.scratchpad_desc(), std::move(arguments));
  return steps;
}

}  // namespace nnstretch::library
