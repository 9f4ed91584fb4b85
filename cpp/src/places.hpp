// What the runtime keeps of inferences that may be under way, and of opened networks.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nnstretch/runtime.hpp"
#include "prepared.hpp"
#include "vendor.hpp"

namespace nnstretch {

enum class Phase : std::uint8_t { free, running, stopping, ended };

// One inference that may be under way: its memory, and what of it has been done.
struct Runtime::Place {
  std::size_t network = 0;
  std::size_t first_job = 0;
  std::size_t first_kind = 0;
  std::uint64_t number = 0;
  std::uint64_t first_order = 0;
  Phase phase = Phase::free;
  Status status = Status::ok;
  std::string failure;  // Of the task that failed first, where one did.
  double deadline_us = kNever;
  std::size_t priority = 0;
  std::vector<const float*> inputs;
  std::vector<float*> outputs;
  std::unique_ptr<float, void (*)(float*)> arena{nullptr, free_floats};
  std::vector<std::size_t> unmet;  // Needs of each task that have not ended.
  std::size_t remaining = 0;       // Tasks that have not ended.
  std::size_t computing = 0;       // Tasks that elements have been handed.
  std::condition_variable ended;
};

struct Runtime::Opened {
  std::shared_ptr<const Network> network;
  std::size_t first_place = 0;
  std::size_t places = 0;
  std::vector<std::unique_ptr<VendorCalls>> vendors;  // By element, null for the host.
  const Prepared* prepared = nullptr;                 // How the host computes.
};

}  // namespace nnstretch
