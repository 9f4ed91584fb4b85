// A workload of `simulate` in JSON: what arrives when, what it costs and takes, and the policy.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "nnstretch/schedule.hpp"

namespace nnstretch {

struct WorkloadTask {
  std::size_t kind = 0;  // Of all applications, the row of costs.
  std::size_t needs = 0;  // How many tasks must end before.
  std::vector<std::size_t> readers;
};

struct WorkloadApplication {
  std::string name;
  std::size_t priority = 0;  // Class: 0 is the lowest of the workload.
  double deadline_us = kNever;
  std::size_t queue_limit = static_cast<std::size_t>(-1);
  std::vector<double> arrivals_us;
  std::vector<WorkloadTask> tasks;
};

struct Workload {
  std::string policy;
  bool queueing = true;
  bool correction = true;
  std::vector<std::string> element_types;
  std::vector<WorkloadApplication> applications;
  std::vector<std::string> kind_names;
  std::vector<CostRow> costs_us;  // What the policy believes, by kind.
  std::vector<CostRow> times_us;  // What tasks take, by kind.
  std::size_t classes = 1;        // Of priority.
};

// Throws Error that names the file, the place and what is wrong.
Workload read_workload(const std::string& path);

}  // namespace nnstretch
