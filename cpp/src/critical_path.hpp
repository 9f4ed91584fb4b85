// The longest chain of tasks that need each other, as they were measured.
#pragma once

#include <cstdint>
#include <vector>

#include "nnstretch/runtime.hpp"

namespace nnstretch {

struct CriticalPath {
  std::uint64_t inference = 0;  // 0 where the spans hold none as a whole.
  double us = 0.0;
};

// Of the last inference of a network of whose tasks all have spans.
CriticalPath critical_path(const Network& network, const std::vector<TaskSpan>& spans);

}  // namespace nnstretch
