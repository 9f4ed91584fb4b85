// Costs that are measured: calls of a network on the host and on elements of vendors.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "library.hpp"
#include "nnstretch/costs.hpp"
#include "nnstretch/error.hpp"
#include "prepared.hpp"
#include "start_thread.hpp"
#include "vendor.hpp"

namespace nnstretch {
namespace {

using Floats = std::unique_ptr<float, void (*)(float*)>;

Floats zeros(std::int64_t count) {
  Floats memory(allocate_floats(static_cast<std::size_t>(count)), free_floats);
  std::fill_n(memory.get(), count, 0.0F);
  return memory;
}

double seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// One inference's memory, its inputs drawn.
class CallBench {
 public:
  CallBench(const Network& network, const Prepared& prepared)
      : network_(network), prepared_(prepared) {
    std::mt19937 generator(0);
    std::normal_distribution<float> normal(0.0F, 1.0F);
    for (const Port& port : network.inputs()) {
      inputs_.emplace_back(static_cast<std::size_t>(port.elements));
      if (port.numbers == Numbers::real)  // Whole ones stay 0, which every table has.
        for (float& number : inputs_.back()) number = normal(generator);
      input_pointers_.push_back(inputs_.back().data());
    }
    for (const Port& port : network.outputs()) {
      outputs_.emplace_back(static_cast<std::size_t>(port.elements));
      output_pointers_.push_back(outputs_.back().data());
    }
    arena_.resize(static_cast<std::size_t>(network.arena_floats()) + 16);
  }

  // Microseconds of one call, on the host or on a vendor's element.
  double run(std::size_t call, const VendorCalls* vendor) {
    const double start = seconds();
    if (vendor)
      vendor->run(call, memory());
    else
      prepared_.compute(call, memory(), scratch_.get());
    return (seconds() - start) * 1e6;
  }

  // Throws Error where the vendor's numbers are others than the host's.
  void check(std::size_t call, const VendorCalls& vendor, const std::string& element) {
    const auto arena = arena_;
    const auto outputs = outputs_;
    run(call, &vendor);
    const std::vector<float> computed = written(call);
    std::copy(arena.begin(), arena.end(), arena_.begin());
    for (std::size_t i = 0; i < outputs.size(); ++i)
      std::copy(outputs[i].begin(), outputs[i].end(), outputs_[i].begin());
    run(call, nullptr);
    const std::vector<float> expected = written(call);
    float largest = 1e-6F;
    float difference = 0.0F;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (std::isfinite(expected[i])) largest = std::max(largest, std::abs(expected[i]));
      const bool neither = std::isnan(computed[i]) && std::isnan(expected[i]);
      if (neither || computed[i] == expected[i]) continue;
      const float off = std::abs(computed[i] - expected[i]);
      difference = std::isnan(off) ? kNeverFloat : std::max(difference, off);
    }
    if (difference > 1e-3F * largest)
      throw Error(Status::failed, "element " + element + " says that it supports " +
                                      signature(network_.calls()[call]) +
                                      " and computes something else: off by " +
                                      std::to_string(difference / largest) +
                                      " of the largest magnitude");
  }

 private:
  static constexpr float kNeverFloat = std::numeric_limits<float>::infinity();

  Memory memory() {
    const auto address = reinterpret_cast<std::uintptr_t>(arena_.data());
    return {input_pointers_.data(), output_pointers_.data(),
            arena_.data() + (64 - address % 64) % 64 / sizeof(float)};
  }
  std::vector<float> written(std::size_t call) {
    const View& view = network_.calls()[call].write;
    const float* base =
        view.storage == Storage::arena ? memory().arena : output_pointers_[view.slot];
    return std::vector<float>(base + view.first(), base + view.end());
  }

  const Network& network_;
  const Prepared& prepared_;
  std::vector<std::vector<float>> inputs_;
  std::vector<std::vector<float>> outputs_;
  std::vector<const float*> input_pointers_;
  std::vector<float*> output_pointers_;
  std::vector<float> arena_;
  Floats scratch_ = zeros(static_cast<std::int64_t>(prepared_.scratch_floats()));
};

// Threads that compute a network again and again, as other elements of the host do while one is
// measured: they share its caches and memory.
class Company {
 public:
  Company(const Network& network, const Prepared& prepared, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      benches_.push_back(std::make_unique<CallBench>(network, prepared));
    try {
      for (const auto& bench : benches_)
        threads_.push_back(start_thread("measuring", [this, &network, &bench = *bench] {
          keep_computing(network, bench);
        }));
    } catch (...) {
      end();
      throw;
    }
  }
  ~Company() { end(); }
  Company(const Company&) = delete;
  Company& operator=(const Company&) = delete;

 private:
  void keep_computing(const Network& network, CallBench& bench) const {
    const library::OneThread alone;
    try {
      while (!ended_)
        for (std::size_t call = 0; call < network.calls().size() && !ended_; ++call)
          bench.run(call, nullptr);
    } catch (...) {  // The one that is measured meets it, too, and says it.
    }
  }
  void end() {
    ended_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  std::atomic<bool> ended_{false};
  std::vector<std::unique_ptr<CallBench>> benches_;
  std::vector<std::thread> threads_;
};

using Times = std::map<std::string, std::vector<double>>;

// Microseconds of every run of every call, by signature.
Times measure(const Network& network, const Prepared& prepared, const ElementOptions& element,
              int turns) {
  const library::OneThread alone;
  CallBench bench(network, prepared);
  std::unique_ptr<VendorCalls> vendor;
  if (element.vendor) vendor = std::make_unique<VendorCalls>(network, element);
  Times times;
  for (int turn = -1; turn < turns; ++turn)
    for (std::size_t call = 0; call < network.calls().size(); ++call) {
      const std::string key = signature(network.calls()[call]);
      const bool offered = vendor && vendor->has(call);
      if (turn < 0 && offered) bench.check(call, *vendor, element.name);
      if (turn >= 0 && offered) times[key].push_back(bench.run(call, vendor.get()));
      if (vendor && turn >= 0) continue;
      const double took_us = bench.run(call, nullptr);
      if (turn >= 0) times[key].push_back(took_us);
    }
  return times;
}

// Never 0, which would say that a call costs nothing.
double median_us(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return std::max(times[times.size() / 2], 0.001);
}

}  // namespace

CostTable measure_costs(const Network& network, const std::vector<ElementOptions>& elements,
                        const std::string& kernels, int turns) {
  const Prepared& prepared = network.prepared(kernels, host_only(elements));
  CostTable table;
  std::vector<std::pair<std::string, const nns_element*>> measured;
  for (const ElementOptions& element : elements) {
    const std::pair<std::string, const nns_element*> kind(element.type, element.vendor);
    if (element.emulated || std::find(measured.begin(), measured.end(), kind) != measured.end())
      continue;
    measured.push_back(kind);
    const auto like = std::count_if(elements.begin(), elements.end(), [&](const auto& listed) {
      return !listed.vendor && !listed.emulated && !element.vendor && listed.type == element.type;
    });
    const Company company(network, prepared, static_cast<std::size_t>(std::max<long>(like - 1, 0)));
    for (auto& [call, times] : measure(network, prepared, element, turns))
      table[call].emplace(element.type, median_us(std::move(times)));
  }
  return table;
}

}  // namespace nnstretch
