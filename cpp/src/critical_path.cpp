#include "critical_path.hpp"

#include <algorithm>
#include <cstddef>
#include <map>

namespace nnstretch {
namespace {

std::uint64_t last_whole(const std::vector<TaskSpan>& spans, std::size_t tasks) {
  std::map<std::uint64_t, std::size_t> kept;
  for (const TaskSpan& span : spans) ++kept[span.inference];
  std::uint64_t last = 0;
  for (const auto& [inference, count] : kept)
    if (count == tasks) last = inference;
  return last;
}

}  // namespace

CriticalPath critical_path(const Network& network, const std::vector<TaskSpan>& spans) {
  std::vector<double> took_us(network.tasks().size(), 0.0);
  CriticalPath path{last_whole(spans, took_us.size()), 0.0};
  for (const TaskSpan& span : spans)
    if (span.inference == path.inference) took_us[span.task] = span.end_us - span.start_us;
  std::vector<double> end_us(took_us.size(), 0.0);
  for (std::size_t task = 0; task < took_us.size(); ++task) {
    double start_us = 0.0;
    for (const std::size_t need : network.tasks()[task].needs)
      start_us = std::max(start_us, end_us[need]);
    end_us[task] = start_us + took_us[task];
    path.us = std::max(path.us, end_us[task]);
  }
  return path;
}

}  // namespace nnstretch
