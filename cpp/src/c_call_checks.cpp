// A call of the C interface to an operation: whatever it holds is checked before it is used.
#include <algorithm>
#include <string>

#include "c_call.hpp"
#include "nnstretch/error.hpp"

namespace nnstretch {
namespace {

constexpr std::int64_t kLargest = std::int64_t{1} << 31;
constexpr double kMostElements = 1ULL << 48;

[[noreturn]] void refuse_call(const std::string& why) { refuse("call, " + why); }

// Checks of one call of hand-written code: nothing of it may leave its tensors.
class Checker {
 public:
  explicit Checker(const nns_call& call) : call_(call), attributes_(call.attributes) {}

  Operation operation() const {
    if (call_.reads_count < 0 || call_.reads_count > NNS_MOST_READS) refuse_call("it reads 0 to 4 tensors");
    for (int i = 0; i < call_.reads_count; ++i) extents(call_.reads[i]);
    extents(call_.write);
    if (!call_.write.data) refuse_call("it writes nothing");
    if (elements(call_.write) > span(call_.write) || repeats(call_.write))
      refuse_call("elements of the result share memory");
    switch (call_.operation) {
      case NNS_CONV2D: return conv2d();
      case NNS_MATMUL: return matmul();
      case NNS_ELEMENTWISE: return apart_or_same(0), Elementwise{activation()};
      case NNS_BINARY:
        apart_or_same(0);
        apart_or_same(1);
        return Binary{arithmetic(), attributes_.scale, activation()};
      case NNS_SCALAR:
        apart_or_same(0);
        return Scalar{arithmetic(), attributes_.number, attributes_.flag != 0, activation()};
      case NNS_POOL2D: return pool2d();
      case NNS_LAYER_NORM: return layer_norm();
      case NNS_GROUP_NORM: return group_norm();
      case NNS_SOFTMAX: return apart_or_same(0), dense_rows(), Softmax{attributes_.flag != 0};
      case NNS_RESIZE2D: return resize2d();
      case NNS_COPY: return apart_or_same(0), Copy{};
      case NNS_FILL: return Fill{attributes_.number};
      default: refuse_call("operation " + std::to_string(call_.operation) + " is none of hand-written code");
    }
  }

 private:
  const nns_tensor& read(int index) const {
    if (index >= call_.reads_count || !call_.reads[index].data)
      refuse_call("its input " + std::to_string(index) + " is absent");
    return call_.reads[index];
  }
  bool has(int index) const { return index < call_.reads_count && call_.reads[index].data; }
  static void extents(const nns_tensor& tensor) {
    if (!tensor.data) return;
    if (tensor.rank < 0 || tensor.rank > NNS_MOST_AXES)
      refuse_call("a tensor has no rank from 0 to 8, or nns_dense was given sizes that are none");
    for (int axis = 0; axis < tensor.rank; ++axis)
      if (tensor.sizes[axis] < 1 || tensor.sizes[axis] > kLargest || tensor.strides[axis] < 0 ||
          tensor.strides[axis] > kLargest)
        refuse_call("a tensor has a size below 1 or a stride below 0");
    if (span(tensor) > kMostElements || elements(tensor) > kMostElements)
      refuse_call("a tensor is larger than any memory");
  }
  // Numbers from the first to the last, gaps among them; no sum of them overflows.
  static double span(const nns_tensor& tensor) {
    double end = 1;
    for (int axis = 0; axis < tensor.rank; ++axis)
      end += static_cast<double>(tensor.sizes[axis] - 1) * static_cast<double>(tensor.strides[axis]);
    return end;
  }
  static double elements(const nns_tensor& tensor) {
    double count = 1;
    for (int axis = 0; axis < tensor.rank; ++axis) count *= static_cast<double>(tensor.sizes[axis]);
    return count;
  }
  // Whether steps along an axis lead nowhere: gaps of other axes hide that from the span.
  static bool repeats(const nns_tensor& tensor) {
    for (int axis = 0; axis < tensor.rank; ++axis)
      if (tensor.sizes[axis] > 1 && tensor.strides[axis] == 0) return true;
    return false;
  }
  static void want(bool sound, const char* why) {
    if (!sound) refuse_call(why);
  }
  static bool shaped(const nns_tensor& tensor, std::initializer_list<std::int64_t> sizes) {
    return tensor.rank == static_cast<std::int32_t>(sizes.size()) &&
           std::equal(sizes.begin(), sizes.end(), tensor.sizes);
  }
  static bool dense(const nns_tensor& tensor, int first_axis) {
    std::int64_t step = 1;
    for (int axis = tensor.rank; axis-- > first_axis;) {
      if (tensor.sizes[axis] != 1 && tensor.strides[axis] != step) return false;
      step *= tensor.sizes[axis];
    }
    return true;
  }
  void same(int index) const {
    const nns_tensor& tensor = read(index);
    want(tensor.rank == call_.write.rank &&
             std::equal(tensor.sizes, tensor.sizes + tensor.rank, call_.write.sizes),
         "an input has another shape than the result");
  }
  void dense_rows() const {
    want(call_.write.rank >= 1 && dense(read(0), 0) && dense(call_.write, 0),
         "it takes tensors without gaps");
  }
  // What is read while the result is written, from an input on, is not the result's memory.
  void apart(int first) const {
    for (int i = first; i < call_.reads_count; ++i)
      if (overlap(call_.reads[i], call_.write))
        refuse_call("the result shares memory with input " + std::to_string(i) +
                    ", which is read while it is written");
  }
  // What is computed number by number, or row by row, may write the very tensor that it reads; any
  // other one in its memory would lose numbers before they are read.
  void apart_or_same(int index) const {
    same(index);
    const nns_tensor &x = read(index), &y = call_.write;
    bool one = x.data == y.data;
    for (int axis = 0; axis < y.rank; ++axis)
      one = one && (y.sizes[axis] == 1 || x.strides[axis] == y.strides[axis]);
    if (!one && overlap(x, y))
      refuse_call("the result shares memory with input " + std::to_string(index) +
                  " and is not the very same tensor");
  }
  void vector_of(int index, std::int64_t length, const char* why) const {
    if (has(index)) want(shaped(read(index), {length}) && dense(read(index), 0), why);
  }
  Activation activation() const {
    const auto last = static_cast<std::int32_t>(Function::round);
    static_assert(NNS_ROUND == static_cast<std::int32_t>(Function::round), "nnstretch.h lags behind");
    want(attributes_.function >= 0 && attributes_.function <= last, "there is no such function");
    return {static_cast<Function>(attributes_.function), attributes_.a, attributes_.b};
  }
  Arithmetic arithmetic() const {
    const auto last = static_cast<std::int32_t>(Arithmetic::prelu);
    want(attributes_.arithmetic >= 0 && attributes_.arithmetic <= last, "there is no such arithmetic");
    return static_cast<Arithmetic>(attributes_.arithmetic);
  }
  void maps(const nns_tensor& tensor) const {
    want(tensor.rank == 4 && dense(tensor, 2), "maps are (N,C,H,W), each without gaps");
  }
  void sizes_fit(std::int64_t in, std::int64_t out, int axis, std::int64_t window) const {
    const std::int64_t stride = attributes_.stride[axis], dilation = attributes_.dilation[axis];
    const std::int64_t before = attributes_.padding[axis], behind = attributes_.padding[axis + 2];
    const auto range = [](std::int64_t value, std::int64_t least) {
      return value >= least && value < 65536;
    };
    want(range(stride, 1) && range(dilation, 1) && range(before, 0) && range(behind, 0) &&
             range(window, 1),
         "strides, dilations and windows are 1 or more, padding is 0 or more");
    const std::int64_t room = in + before + behind - dilation * (window - 1) - 1;
    want(room >= 0 && room / stride + 1 == out, "the result has another size than the window gives");
  }
  template <typename Window>
  Window window() const {
    Window result;
    std::copy(attributes_.stride, attributes_.stride + 2, result.stride.begin());
    std::copy(attributes_.dilation, attributes_.dilation + 2, result.dilation.begin());
    std::copy(attributes_.padding, attributes_.padding + result.padding.size(),
              result.padding.begin());
    return result;
  }
  Operation conv2d() const {
    const nns_tensor &x = read(0), &weight = read(1), &y = call_.write;
    maps(x);
    maps(y);
    want(weight.rank == 4 && dense(weight, 0), "weights are (O,C/groups,kh,kw) without gaps");
    const std::int64_t groups = attributes_.groups;
    want(groups >= 1 && x.sizes[1] % groups == 0 && x.sizes[1] / groups == weight.sizes[1] &&
             y.sizes[1] == weight.sizes[0] && y.sizes[1] % groups == 0 &&
             x.sizes[0] == y.sizes[0] && dense(x, 1) && dense(y, 1),
         "channels of input, weights and result do not fit");
    for (int axis = 0; axis < 2; ++axis)
      sizes_fit(x.sizes[axis + 2], y.sizes[axis + 2], axis, weight.sizes[axis + 2]);
    vector_of(2, y.sizes[1], "the bias is (O)");
    if (has(3)) {
      same(3);
      want(dense(read(3), 1), "the residual is a tensor without gaps");
    }
    apart(0);
    Conv2d conv = window<Conv2d>();
    conv.groups = groups;
    conv.activation = activation();
    return conv;
  }
  Operation matmul() const {
    const nns_tensor &a = read(0), &b = read(1), &y = call_.write;
    const int rank = y.rank;
    want(rank >= 2 && a.rank == rank && b.rank == rank, "a, b and the result have as many axes");
    want(a.sizes[rank - 2] == y.sizes[rank - 2] && b.sizes[rank - 1] == y.sizes[rank - 1] &&
             a.sizes[rank - 1] == b.sizes[rank - 2] &&
             std::equal(a.sizes, a.sizes + rank - 2, y.sizes) &&
             std::equal(b.sizes, b.sizes + rank - 2, y.sizes),
         "sizes of the product do not fit");
    want(dense(y, 0), "the result is a tensor without gaps");
    vector_of(2, y.sizes[rank - 1], "the bias is (N)");
    if (has(3)) {
      same(3);
      want(dense(read(3), 0), "the residual is a tensor without gaps");
    }
    apart(0);
    return Matmul{attributes_.scale, activation()};
  }
  Operation pool2d() const {
    const nns_tensor &x = read(0), &y = call_.write;
    maps(x);
    maps(y);
    want(x.sizes[0] == y.sizes[0] && x.sizes[1] == y.sizes[1], "a pool keeps its channels");
    want(attributes_.padding[0] == attributes_.padding[2] &&
             attributes_.padding[1] == attributes_.padding[3],
         "a pool is padded alike on both sides");
    for (int axis = 0; axis < 2; ++axis) {
      sizes_fit(x.sizes[axis + 2], y.sizes[axis + 2], axis, attributes_.window[axis]);
      want(attributes_.padding[axis] * 2 <= attributes_.window[axis],
           "a pool is padded by at most half of its window");
    }
    want(attributes_.kind == 0 || attributes_.kind == 1, "pools are 0 (max) or 1 (average)");
    apart(0);
    Pool2d pool = window<Pool2d>();
    std::copy(attributes_.window, attributes_.window + 2, pool.window.begin());
    pool.pooling = static_cast<Pooling>(attributes_.kind);
    pool.count_padding = attributes_.flag != 0;
    pool.divisor = std::max<std::int64_t>(attributes_.divisor, 0);
    return pool;
  }
  Operation layer_norm() const {
    apart_or_same(0);
    dense_rows();
    const int axes = attributes_.axes, rank = call_.write.rank;
    want(axes >= 1 && axes <= rank, "a layer norm is over some of the last axes");
    for (int i = 1; i < 3; ++i)
      if (has(i))
        want(read(i).rank == axes && dense(read(i), 0) &&
                 std::equal(read(i).sizes, read(i).sizes + axes, call_.write.sizes + rank - axes),
             "weight and bias have the shape of the last axes");
    apart(1);
    return LayerNorm{axes, attributes_.epsilon};
  }
  Operation group_norm() const {
    apart_or_same(0);
    dense_rows();
    want(call_.write.rank >= 2 && attributes_.groups >= 1 &&
             call_.write.sizes[1] % attributes_.groups == 0,
         "groups divide the channels");
    for (int i = 1; i < 3; ++i) vector_of(i, call_.write.sizes[1], "weight and bias are (C)");
    apart(1);
    return GroupNorm{attributes_.groups, attributes_.epsilon};
  }
  Operation resize2d() const {
    const nns_tensor &x = read(0), &y = call_.write;
    maps(x);
    maps(y);
    want(x.sizes[0] == y.sizes[0] && x.sizes[1] == y.sizes[1], "a resize keeps its channels");
    want(attributes_.kind >= 0 && attributes_.kind <= 2,
         "a resize is 0 (nearest), 1 (bilinear) or 2 (nearest-exact)");
    apart(0);
    Resize2d resize;
    resize.interpolation = static_cast<Interpolation>(attributes_.kind);
    resize.align_corners = attributes_.flag != 0;
    for (std::size_t i = 0; i < 2; ++i) {
      want(attributes_.ratio[i] > 0 && attributes_.ratio[i] < 1e6F, "ratios are above 0");
      resize.scale[i] = attributes_.ratio[i];
    }
    return resize;
  }

  const nns_call& call_;
  const nns_attributes& attributes_;
};

}  // namespace

Operation operation_of(const nns_call& call) { return Checker(call).operation(); }

}  // namespace nnstretch
