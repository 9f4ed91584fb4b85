#include "task_times.hpp"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "decimal.hpp"
#include "json.hpp"
#include "nnstretch/error.hpp"
#include "run_graph.hpp"
#include "whole_file.hpp"

namespace nnstretch {
namespace {

constexpr std::size_t kMostSamples = 200;
constexpr std::size_t kFew = 10;  // Times whose mean says nothing.
constexpr std::size_t kCrowd = 8;  // Inferences for each element, where they crowd.
constexpr double kWindow_us = 50000.0;  // Of which the host's pace is told.

// Microseconds by network, task, and the first element of its kind.
using Key = std::tuple<std::size_t, std::size_t, std::size_t>;
using Samples = std::map<Key, std::vector<double>>;

struct TaskTimes {
  Samples alone;
  Samples beside;    // While all elements work.
  Samples straight;  // Of these, right after a task that it needs.
  Samples switched;  // Of these, after another one.
  Samples crowded;   // Likewise, while many inferences are under way.
  std::size_t few = 0;  // So many were under way for `switched`, and so many for `crowded`.
  std::size_t many = 0;
  std::vector<double> handover_us;
  std::vector<double> wake_us;
  std::vector<double> pace;  // How many times as long as in the mean, window by window.
};

// Networks of which one element takes all tasks that it can.
std::vector<MeasuredNetwork> alone_on(std::vector<MeasuredNetwork> networks, std::size_t element) {
  for (MeasuredNetwork& measured : networks)
    for (CostRow& row : measured.rows) {
      if (row[element] == kNever) continue;
      for (std::size_t i = 0; i < row.size(); ++i)
        if (i != element) row[i] = kNever;
    }
  return networks;
}

// Nothing is left out: pauses of the host lengthen tasks under load just so.
double mean(const std::vector<double>& numbers) {
  if (numbers.empty()) return 0.0;
  return std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(numbers.size());
}

std::string number(double value) { return decimal(value, 3); }

std::string list(const std::vector<double>& numbers) {
  std::string text;
  for (const double each : numbers) text += (text.empty() ? "" : ", ") + number(each);
  return "[" + text + "]";
}

// From the shortest to the longest; of many, those in the middle of equal parts of all.
std::string sorted_list(const std::vector<double>& sorted) {
  const std::size_t kept = std::min(sorted.size(), kMostSamples);
  std::string text;
  for (std::size_t i = 0; i < kept; ++i)
    text += (i > 0 ? ", " : "") + number(sorted[(2 * i + 1) * sorted.size() / (2 * kept)]);
  return "[" + text + "]";
}

// Whether an element was measured before under another name, so that its times are known.
std::size_t first_like(const std::vector<ElementOptions>& elements, std::size_t element) {
  for (std::size_t i = 0; i < element; ++i)
    if (elements[i].type == elements[element].type && elements[i].vendor == elements[element].vendor)
      return i;
  return element;
}

Key key_of(const TimedTask& task, const RuntimeOptions& options) {
  return {task.span.network, task.span.task, first_like(options.elements, task.span.element)};
}

void add_gaps(const std::vector<TimedTask>& timed, TaskTimes& times) {
  for (const TimedTask& task : timed) {
    if (task.handover_us >= 0.0) times.handover_us.push_back(task.handover_us);
    if (task.wake_us >= 0.0) times.wake_us.push_back(task.wake_us);
  }
}

struct Work {
  double took_us = 0.0;
  double usual_us = 0.0;  // What the same tasks take in the mean.
  std::size_t tasks = 0;
};

// A host has slow moments that last: tasks at one time are slow together. Half-empty windows at the
// ends say nothing.
void add_pace(const std::vector<TimedTask>& timed, const RuntimeOptions& options, TaskTimes& times) {
  std::map<std::pair<Key, bool>, Work> kinds;
  for (const TimedTask& task : timed) {
    Work& kind = kinds[{key_of(task, options), task.switched}];
    kind.took_us += task.span.end_us - task.span.start_us;
    ++kind.tasks;
  }
  std::map<std::int64_t, Work> windows;
  for (const TimedTask& task : timed) {
    const Work& kind = kinds.at({key_of(task, options), task.switched});
    Work& window = windows[static_cast<std::int64_t>(task.span.start_us / kWindow_us)];
    window.took_us += task.span.end_us - task.span.start_us;
    window.usual_us += kind.took_us / static_cast<double>(kind.tasks);
  }
  for (const auto& [number, window] : windows)
    if (window.usual_us >= kWindow_us / 2)
      times.pace.push_back(std::clamp(window.took_us / window.usual_us, 0.1, 1000.0));
}

// How many inferences of each network crowd: fewer where their arenas would not fit.
std::size_t crowd_of(const std::vector<MeasuredNetwork>& networks, std::size_t elements) {
  double floats = 0.0;
  for (const MeasuredNetwork& measured : networks)
    floats += static_cast<double>(measured.network->arena_floats());
  std::size_t crowd = kCrowd * elements;
  while (crowd > elements + 1 && !fits_memory(floats * static_cast<double>(crowd))) crowd /= 2;
  return std::max(crowd, elements + 1);
}

// On all elements, with as many inferences under way as crowd: what a task needs has left the
// caches when its turn comes.
void measure_crowd(const std::vector<MeasuredNetwork>& networks, const RuntimeOptions& options,
                   TaskTimes& times) {
  times.many = crowd_of(networks, options.elements.size());
  if (times.many == times.few) return;
  const std::vector<TimedTask> timed = timed_tasks(networks, options, times.many);
  for (const TimedTask& task : timed)
    if (task.switched)
      times.crowded[key_of(task, options)].push_back(task.span.end_us - task.span.start_us);
  add_pace(timed, options, times);
}

// One inference at a time on each element, then one more than there are elements on all of them: so
// that inferences wait for each other and change elements, as they do under load; then a crowd.
TaskTimes measure(const std::vector<MeasuredNetwork>& networks, const RuntimeOptions& options) {
  const std::size_t count = options.elements.size();
  TaskTimes times;
  for (std::size_t element = 0; element < count; ++element) {
    if (first_like(options.elements, element) != element) continue;
    const std::vector<TimedTask> timed = timed_tasks(alone_on(networks, element), options, 1);
    for (const TimedTask& task : timed)
      times.alone[key_of(task, options)].push_back(task.span.end_us - task.span.start_us);
    add_gaps(timed, times);
  }
  if (count > 1) {
    times.few = count + 1;
    const std::vector<TimedTask> timed = timed_tasks(networks, options, times.few);
    for (const TimedTask& task : timed) {
      const Key key = key_of(task, options);
      const double took_us = task.span.end_us - task.span.start_us;
      times.beside[key].push_back(took_us);
      (task.switched ? times.switched : times.straight)[key].push_back(took_us);
    }
    add_gaps(timed, times);
    add_pace(timed, options, times);
    measure_crowd(networks, options, times);
  }
  for (auto& [key, samples] : times.alone) std::sort(samples.begin(), samples.end());
  return times;
}

bool many(const Samples& samples, const Key& key) {
  const auto times = samples.find(key);
  return times != samples.end() && times->second.size() >= kFew;
}

// How many times as long the first take in the mean; once where either are few.
double factor(const Samples& longer, const Samples& shorter, const Key& key) {
  if (!many(longer, key) || !many(shorter, key)) return 1.0;
  return std::clamp(mean(longer.at(key)) / mean(shorter.at(key)), 0.1, 1000.0);
}

// What a task takes on an element, as an object of JSON; empty where it was not measured there.
std::string row_of(const TaskTimes& times, const std::vector<ElementOptions>& elements,
                   std::size_t network, std::size_t task, std::size_t element) {
  const Key key{network, task, first_like(elements, element)};
  const auto samples = times.alone.find(key);
  if (samples == times.alone.end()) return "";
  const std::vector<double>& sorted = samples->second;
  const bool told_apart = many(times.straight, key) && many(times.switched, key);
  const Samples& beside = told_apart ? times.straight : times.beside;
  return "\"processor\": " + quoted(elements[element].name) +
         ", \"median_us\": " + number(sorted[sorted.size() / 2]) +
         ", \"beside\": " + number(factor(beside, times.alone, key)) +
         ", \"switched\": " + number(factor(times.switched, times.straight, key)) +
         ", \"crowded\": " + number(factor(times.crowded, beside, key)) +
         ",\n   \"samples_us\": " + sorted_list(sorted);
}

}  // namespace

void write_task_times(const std::string& path, const std::vector<MeasuredNetwork>& networks,
                      const RuntimeOptions& options) {
  const TaskTimes times = measure(networks, options);
  WholeFile whole(path);
  std::ofstream& file = whole.stream();
  file << "{\"format\": 1, \"costs\": \"measured\", \"handover_us\": " << number(mean(times.handover_us))
       << ", \"wake_us\": " << number(mean(times.wake_us)) << ",\n \"few_under_way\": " << times.few
       << ", \"many_under_way\": " << times.many << ",\n \"pace_window_us\": " << number(kWindow_us)
       << ", \"pace\": " << list(times.pace) << ",\n \"processors\": [";
  for (std::size_t i = 0; i < options.elements.size(); ++i)
    file << (i > 0 ? ", " : "") << quoted(options.elements[i].name);
  file << "],\n \"tasks\": [";
  const char* comma = "\n  ";
  for (std::size_t network = 0; network < networks.size(); ++network) {
    const std::vector<std::string> names = task_names(*networks[network].network);
    for (std::size_t task = 0; task < names.size(); ++task)
      for (std::size_t i = 0; i < options.elements.size(); ++i) {
        const bool runs = networks[network].rows[task][i] < kNever;
        const std::string row = runs ? row_of(times, options.elements, network, task, i) : "";
        if (row.empty()) continue;
        file << comma << "{\"application\": " << quoted(networks[network].network->name())
             << ", \"task\": " << names[task] << ", " << row << "}";
        comma = ",\n  ";
      }
  }
  file << "\n]}\n";
  whole.finish();
}

}  // namespace nnstretch
