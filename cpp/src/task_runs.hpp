// Networks at work in the runtime itself: what their tasks took, and after what each of them ran.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "nnstretch/network.hpp"
#include "nnstretch/runtime.hpp"

namespace nnstretch {

struct MeasuredNetwork {
  std::shared_ptr<const Network> network;
  std::vector<CostRow> rows;  // Costs of its tasks, for the policy.
};

// A task that ran.
struct TimedTask {
  TaskSpan span;
  // Whether it needs other tasks, and its element computed none of them just before.
  bool switched = false;
  // From when it could start until it did, where its element had come to rest; else below 0.
  double wake_us = -1.0;
  // Likewise where its element had just ended what it waited for.
  double handover_us = -1.0;
};

// Run inferences of all networks in random order, `at_once` of them under way; the first ones are
// not returned. Throws Error where a task fails.
std::vector<TimedTask> timed_tasks(const std::vector<MeasuredNetwork>& networks,
                                   const RuntimeOptions& options, std::size_t at_once);

}  // namespace nnstretch
