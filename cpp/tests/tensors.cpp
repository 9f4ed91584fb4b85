// Tensors that share memory: what may, what may not, and that no number shared is overlooked.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "c_call.hpp"
#include "nnstretch/error.hpp"

namespace {

using namespace nnstretch;
using Numbers = std::initializer_list<std::int64_t>;

[[noreturn]] void fail(const std::string& why) { throw std::runtime_error(why); }

float memory[4096];

nns_tensor tensor(std::ptrdiff_t offset, Numbers sizes, Numbers strides) {
  nns_tensor result{};
  result.data = memory + offset;
  result.rank = static_cast<std::int32_t>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), result.sizes);
  std::copy(strides.begin(), strides.end(), result.strides);
  return result;
}

std::set<std::int64_t> places_of(const nns_tensor& of) {
  std::set<std::int64_t> places{of.data - memory};
  for (int axis = 0; axis < of.rank; ++axis) {
    std::set<std::int64_t> more;
    for (const std::int64_t place : places)
      for (std::int64_t i = 0; i < of.sizes[axis]; ++i) more.insert(place + i * of.strides[axis]);
    places = std::move(more);
  }
  return places;
}

bool share(const nns_tensor& a, const nns_tensor& b) {
  const std::set<std::int64_t> first = places_of(a);
  for (const std::int64_t place : places_of(b))
    if (first.count(place) > 0) return true;
  return false;
}

class Draw {
 public:
  std::int64_t below(std::int64_t end) {
    return static_cast<std::int64_t>(generator_() % static_cast<std::uint64_t>(end));
  }
  // Any strides, or those of a part of another tensor.
  nns_tensor any() {
    nns_tensor result{};
    result.data = memory + below(40);
    result.rank = static_cast<std::int32_t>(below(4));
    std::int64_t stride = 1 + below(3);
    const bool part = below(3) > 0;
    for (int axis = result.rank; axis-- > 0;) {
      result.sizes[axis] = 1 + below(4);
      result.strides[axis] = part ? stride : below(14);
      stride *= result.sizes[axis] + below(2);
    }
    return result;
  }
  nns_tensor beside(const nns_tensor& other) {
    nns_tensor result = other;
    result.data = memory + below(40);
    for (int axis = 0; axis < other.rank; ++axis)
      if (below(3) == 0) result.sizes[axis] = 1 + below(4);
    return result;
  }

 private:
  std::mt19937_64 generator_{1};
};

void overlook_nothing() {
  constexpr int kTurns = 60000;
  Draw draw;
  int apart = 0, told = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    const nns_tensor a = draw.any(), b = draw.below(2) == 0 ? draw.any() : draw.beside(a);
    const bool shared = share(a, b), said = overlap(a, b);
    if (said != overlap(b, a)) fail("whether two tensors overlap depends on their order");
    if (shared && !said) fail("two tensors share a number, and are told to share none");
    apart += shared ? 0 : 1;
    told += said ? 0 : 1;
  }
  // Strides that no tensor in use has are judged with caution.
  if (told < apart * 8 / 10)
    fail(std::to_string(told) + " of " + std::to_string(apart) + " pairs are told apart");
}

void tell_apart() {
  const auto expect = [](const nns_tensor& a, const nns_tensor& b, const char* what) {
    if (overlap(a, b) || share(a, b)) fail(std::string(what) + " are said to share memory");
  };
  expect(tensor(0, {4, 5}, {10, 2}), tensor(1, {4, 5}, {10, 2}), "real and imaginary parts");
  expect(tensor(0, {2, 2, 9}, {36, 18, 1}), tensor(9, {2, 2, 9}, {36, 18, 1}),
         "even and odd channels");
  expect(tensor(0, {2, 6}, {10, 1}), tensor(6, {4}, {1}), "a result and a bias in its gap");
  expect(tensor(0, {3, 1}, {8, 1}), tensor(3, {3, 1}, {8, 4}), "columns of one matrix");
}

struct Case {
  nns_call call;
  const char* words;  // Of the refusal, null where there is none.
};

nns_call call_of(nns_operation operation, std::initializer_list<nns_tensor> reads,
                 const nns_tensor& write) {
  nns_call call{};
  call.operation = operation;
  call.attributes = nns_defaults();
  call.reads_count = static_cast<std::int32_t>(reads.size());
  std::copy(reads.begin(), reads.end(), call.reads);
  call.write = write;
  return call;
}

std::vector<Case> cases() {
  static const char* const other = "and is not the very same tensor";
  static const char* const itself = "elements of the result share memory";
  const nns_tensor a = tensor(0, {4, 4}, {4, 1}), across = tensor(0, {4, 4}, {1, 4});
  const nns_tensor first = tensor(0, {4, 4}, {0, 0}), behind = tensor(1, {4, 4}, {4, 1});
  const nns_tensor far = tensor(100, {4, 4}, {4, 1}), odd = tensor(1, {4, 4}, {8, 2});
  const nns_tensor even = tensor(0, {4, 4}, {8, 2});
  const nns_tensor row = tensor(0, {1, 4}, {4, 1}), same_row = tensor(0, {1, 4}, {9, 1});
  std::vector<Case> all = {
      {call_of(NNS_BINARY, {a, first}, a), other},
      {call_of(NNS_BINARY, {a, across}, a), other},
      {call_of(NNS_BINARY, {across, far}, a), other},
      {call_of(NNS_BINARY, {a, a}, a), nullptr},
      {call_of(NNS_BINARY, {even, far}, odd), nullptr},
      {call_of(NNS_COPY, {row}, same_row), nullptr},
      {call_of(NNS_COPY, {even}, odd), nullptr},
      {call_of(NNS_COPY, {far}, tensor(0, {4, 4}, {100, 0})), itself},
      {call_of(NNS_FILL, {}, tensor(0, {4, 4}, {100, 0})), itself},
      {call_of(NNS_FILL, {}, tensor(0, {4, 1}, {100, 0})), nullptr},
  };
  for (const nns_operation operation :
       {NNS_ELEMENTWISE, NNS_SCALAR, NNS_COPY, NNS_SOFTMAX, NNS_LAYER_NORM, NNS_GROUP_NORM}) {
    all.push_back({call_of(operation, {a}, behind), other});
    all.push_back({call_of(operation, {behind}, a), other});
    all.push_back({call_of(operation, {a}, a), nullptr});
    all.push_back({call_of(operation, {a}, far), nullptr});
  }
  return all;
}

void judge_calls() {
  for (const Case& each : cases()) {
    const std::string which = "operation " + std::to_string(each.call.operation);
    try {
      operation_of(each.call);
    } catch (const Error& error) {
      if (!each.words || !std::strstr(error.what(), each.words))
        fail(which + " is refused: " + error.what());
      continue;
    }
    if (each.words) fail(which + " is taken, although: " + each.words);
  }
}

}  // namespace

int main() {
  try {
    overlook_nothing();
    tell_apart();
    judge_calls();
    std::puts("ok");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tensors: %s\n", error.what());
  }
  return 1;
}
