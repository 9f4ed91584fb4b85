#include "fuzz_calls.hpp"

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <vector>

namespace {

using Sizes = std::initializer_list<std::int64_t>;

float here = 0.0F;  // Stands for memory until sizes are known.

nns_tensor tensor(Sizes sizes) {
  return nns_dense(&here, static_cast<std::int32_t>(sizes.size()), sizes.begin());
}

class Draw {
 public:
  explicit Draw(std::mt19937_64& generator) : generator_(generator) {}
  std::int64_t below(std::int64_t end) {
    return static_cast<std::int64_t>(generator_() % static_cast<std::uint64_t>(end));
  }
  std::int64_t size() { return 1 + below(5); }

  nns_call sound() {
    nns_call call{};
    call.attributes = nns_defaults();
    call.reads_count = 1;
    const std::int64_t n = size(), c = size(), h = size() + 2, w = size() + 2;
    call.reads[0] = call.write = tensor({n, c, h, w});
    switch (below(10)) {
      case 0: convolution(call, n, c, h, w); break;
      case 1: product(call); break;
      case 2: call.operation = NNS_ELEMENTWISE; break;
      case 3:
        call.operation = NNS_BINARY;
        call.reads_count = 2;
        call.reads[1] = call.write;
        break;
      case 4: pool(call, n, c, h, w); break;
      case 5:
        call.operation = NNS_LAYER_NORM;
        call.attributes.axes = static_cast<std::int32_t>(size());
        break;
      case 6:
        call.operation = NNS_GROUP_NORM;
        call.attributes.groups = size();
        break;
      case 7: call.operation = NNS_SOFTMAX; break;
      case 8:
        call.operation = NNS_RESIZE2D;
        call.attributes.kind = static_cast<std::int32_t>(below(2));
        call.attributes.flag = static_cast<std::int32_t>(below(2));
        call.attributes.ratio[0] = static_cast<float>(size()) / 2;
        call.write = tensor({n, c, size() * 3, size() * 3});
        break;
      default: call.operation = below(2) != 0 ? NNS_COPY : NNS_FILL; break;
    }
    call.attributes.function = static_cast<std::int32_t>(below(24));
    return call;
  }

  // One number of a call is another.
  void change(nns_call& call) {
    static const std::int64_t edges[] = {-1, 0, 1, 2, 3, 7, 9, 64, 65536, 1LL << 31, INT64_MIN, INT64_MAX};
    const std::int64_t edge = edges[below(12)];
    const std::int64_t which = below(4);
    nns_tensor& changed = which < 3 ? call.reads[which % 2] : call.write;
    const std::int64_t axis = below(4);
    switch (below(9)) {
      case 0: changed.sizes[axis] = edge; break;
      case 1: changed.strides[axis] = edge; break;
      case 2: changed.rank = static_cast<std::int32_t>(edge % 16); break;
      case 3: changed.data = nullptr; break;
      case 4: call.reads_count = static_cast<std::int32_t>(edge % 8); break;
      case 5: call.attributes.stride[axis % 2] = edge; break;
      case 6: call.attributes.padding[axis] = edge; break;
      case 7: call.attributes.groups = call.attributes.window[axis % 2] = edge; break;
      default:
        call.attributes.kind = call.attributes.axes = static_cast<std::int32_t>(edge);
        call.attributes.dilation[axis % 2] = edge;
        break;
    }
  }

 private:
  void convolution(nns_call& call, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
    call.operation = NNS_CONV2D;
    call.reads_count = 4;
    const std::int64_t depthwise = below(3) == 0 ? c : 1, out = depthwise * size(), kernel = size() % 3 + 1;
    call.attributes.groups = depthwise;
    call.attributes.stride[0] = call.attributes.stride[1] = 1 + below(2);
    for (std::int64_t& padding : call.attributes.padding) padding = below(2);
    const std::int64_t* const pad = call.attributes.padding;
    const std::int64_t stride = call.attributes.stride[0];
    call.reads[1] = tensor({out, c / depthwise, kernel, kernel});
    if (below(2) != 0) call.reads[2] = tensor({out});
    call.write = tensor({n, out, (h + pad[0] + pad[2] - kernel) / stride + 1,
                         (w + pad[1] + pad[3] - kernel) / stride + 1});
    if (below(2) != 0) call.reads[3] = call.write;
  }
  void product(nns_call& call) {
    call.operation = NNS_MATMUL;
    call.reads_count = 3;
    const std::int64_t batch = size(), m = size() * size(), k = size() * size(), n = size() * size();
    call.reads[0] = tensor({batch, m, k});
    call.reads[1] = tensor({batch, k, n});
    if (below(2) != 0) call.reads[2] = tensor({n});
    call.write = tensor({batch, m, n});
  }
  void pool(nns_call& call, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
    call.operation = NNS_POOL2D;
    call.attributes.kind = static_cast<std::int32_t>(below(2));
    call.attributes.window[0] = call.attributes.window[1] = 2;
    for (std::int64_t& padding : call.attributes.padding) padding = 0;
    call.write = tensor({n, c, h - 1, w - 1});
  }

  std::mt19937_64& generator_;
};

// Memory just as long as a tensor says; false where that is no length for a test.
bool allocate(nns_tensor& tensor, std::vector<std::unique_ptr<float[]>>& memory) {
  if (!tensor.data) return true;
  double end = 1;
  for (int axis = 0; axis < tensor.rank && axis < NNS_MOST_AXES; ++axis)
    end += (static_cast<double>(tensor.sizes[axis]) - 1) * static_cast<double>(tensor.strides[axis]);
  if (!(end < 1 << 16)) return false;
  const auto count = static_cast<std::size_t>(end < 1 ? 1 : end);
  memory.emplace_back(new float[count]);
  for (std::size_t i = 0; i < count; ++i) memory.back()[i] = 0.5F;
  tensor.data = memory.back().get();
  return true;
}

}  // namespace

CallFuzzer::CallFuzzer() {
  if (nns_create("{\"elements\": [\"cpu\", \"cpu\"]}", &runtime_) != NNS_OK ||
      nns_session_open(runtime_, nullptr, 8, &session_) != NNS_OK || nns_start(runtime_) != NNS_OK)
    std::abort();
}

CallFuzzer::~CallFuzzer() { nns_close(runtime_); }

nns_status CallFuzzer::run() {
  Draw draw(draw_);
  nns_call call = draw.sound();
  for (std::int64_t changes = draw.below(3); changes > 0; --changes) draw.change(call);
  std::vector<std::unique_ptr<float[]>> memory;
  for (nns_tensor& read : call.reads)
    if (!allocate(read, memory)) return NNS_BAD_INPUT;
  if (!allocate(call.write, memory)) return NNS_BAD_INPUT;
  return nns_enqueue(session_, &call, nullptr);
}
