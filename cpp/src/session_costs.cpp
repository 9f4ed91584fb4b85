// What calls of hand-written code cost, and how an element carries one out.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "c_call.hpp"
#include "compute.hpp"
#include "nnstretch/session.hpp"
#include "vendor.hpp"

namespace nnstretch {
namespace {

using Floats = std::unique_ptr<float, void (*)(float*)>;

void compute_on_host(const Operation& operation, const nns_call& call, float* scratch) {
  kernels::Tensor reads[NNS_MOST_READS];
  for (int i = 0; i < call.reads_count; ++i) reads[i] = tensor_of(call.reads[i]);
  Floats packed(nullptr, free_floats);
  if (const auto* conv = std::get_if<Conv2d>(&operation)) {
    const std::size_t floats = kernels::table().packed_floats(*conv, reads[1]);
    if (floats > 0) {
      packed.reset(allocate_floats(floats));
      kernels::table().pack(*conv, reads[1], packed.get());
    }
  }
  compute_tensors(operation, {reads, call.reads_count}, tensor_of(call.write), packed.get(),
                  scratch);
}

// A call on memory of its own: what it will read may be written just now.
double host_cost_us(const Operation& operation, nns_call call) {
  constexpr int kTurns = 3;
  std::vector<Floats> memory;
  const auto replace = [&](nns_tensor& tensor) {
    if (!tensor.data) return;
    memory.emplace_back(allocate_floats(extent(tensor)), free_floats);
    std::fill_n(memory.back().get(), extent(tensor), 0.0F);
    tensor.data = memory.back().get();
  };
  for (int i = 0; i < call.reads_count; ++i) replace(call.reads[i]);
  replace(call.write);
  const Floats scratch(allocate_floats(kernels::kScratchFloats), free_floats);
  double least_us = kNever;
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto start = std::chrono::steady_clock::now();
    compute_on_host(operation, call, scratch.get());
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    least_us = std::min(least_us, took.count());
  }
  return std::max(least_us, 0.001);
}

}  // namespace

CostRow Session::costs_of(const Operation& operation, const nns_call& call,
                          const Kind& kind) const {
  const auto& [key, able] = kind;
  const auto entry = costs_.find(key);
  const std::vector<ElementOptions>& elements = runtime_.options().elements;
  CostRow row;
  double host_us = kNever;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const ElementOptions& element = elements[i];
    double cost_us = kNever;
    if (entry != costs_.end() && entry->second.count(element.type) > 0 && (able >> i & 1) != 0)
      cost_us = entry->second.at(element.type);
    else if (measure_ && element.type == "cpu" && !element.vendor)
      cost_us = host_us = host_us < kNever ? host_us : host_cost_us(operation, call);
    row.push_back(cost_us);
  }
  if (std::all_of(row.begin(), row.end(), [](double us) { return us == kNever; }))
    refuse("no cost of " + key + " on any element, measure it with --profile");
  return row;
}

// Every call is asked about: attributes and strides that costs do not depend on may be what an
// element does not support.
std::size_t Session::kind_of(const Operation& operation, const nns_call& call) {
  const std::vector<ElementOptions>& elements = runtime_.options().elements;
  Kind kind{signature(call_of(operation, call)), 0};
  const std::lock_guard<std::mutex> lock(kinds_mutex_);
  for (std::size_t i = 0; i < elements.size(); ++i)
    if (supports(elements[i], call)) kind.second |= std::uint64_t{1} << i;
  const auto known = kinds_.find(kind);
  if (known != kinds_.end()) return known->second;
  CostRow row = costs_of(operation, call, kind);
  const std::lock_guard<std::mutex> runtime_lock(runtime_.mutex_);
  runtime_.costs_.add(kind.first, std::move(row));
  return kinds_[kind] = runtime_.costs_.kinds() - 1;
}

void Session::compute(std::size_t element, const Slot& slot) const {
  if (runtime_.options().elements[element].vendor)
    run_once(runtime_.options().elements[element], slot.call);
  else
    compute_on_host(slot.operation, slot.call, runtime_.scratch_[element].get());
}

}  // namespace nnstretch
