#include "task_times.hpp"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <fstream>
#include <numeric>
#include <utility>

#include "json.hpp"
#include "nnstretch/error.hpp"
#include "run_graph.hpp"

namespace nnstretch {
namespace {

constexpr std::size_t kFewest = 21;    // Inferences of a run.
constexpr std::size_t kMost = 400;
constexpr double kLongEnough_us = 2e6;
constexpr std::size_t kWarm = 3;       // Inferences of each place that are not counted.
constexpr std::size_t kMostSamples = 200;

using Rows = std::vector<CostRow>;

// Microseconds by task and element.
using Samples = std::vector<std::vector<std::vector<double>>>;

struct Run {
  std::vector<TaskSpan> spans;  // Without those of the first inferences.
  std::vector<double> wait_us;  // From when an inference was submitted until its first task began.
};

// Inferences, as many under way as there are places.
class Bench {
 public:
  Bench(const std::shared_ptr<const Network>& network, RuntimeOptions options, const Rows& rows,
        std::size_t places)
      : places_(places), warm_(kWarm * places) {
    options.trace_spans = network->tasks().size() * (kMost + warm_ + places);
    runtime_ = std::make_unique<Runtime>(std::move(options));
    runtime_->open(network, places, rows);
    for (const Port& port : network->inputs()) {
      inputs_.emplace_back(static_cast<std::size_t>(port.elements), 0.5F);
      input_pointers_.push_back(inputs_.back().data());
    }
    for (std::size_t place = 0; place < places; ++place) {
      output_pointers_.emplace_back();
      for (const Port& port : network->outputs()) {
        outputs_.emplace_back(static_cast<std::size_t>(port.elements));
        output_pointers_.back().push_back(outputs_.back().data());
      }
    }
    runtime_->start();
  }

  Run run() {
    std::deque<Ticket> under_way;
    std::vector<double> submitted_us;
    const double begun_us = runtime_->now_us();
    while (submitted_us.size() < warm_ + kMost) {
      const bool enough = submitted_us.size() >= warm_ + kFewest;
      if (enough && runtime_->now_us() - begun_us > kLongEnough_us) break;
      if (under_way.size() == places_) wait_oldest(under_way);
      submitted_us.push_back(runtime_->now_us());
      float* const* outputs = output_pointers_[submitted_us.size() % places_].data();
      under_way.push_back(runtime_->submit(0, input_pointers_.data(), outputs));
    }
    const std::size_t last = submitted_us.size() - places_;  // Later ones end beside fewer others.
    while (!under_way.empty()) wait_oldest(under_way);
    return counted(submitted_us, last);
  }

 private:
  void wait_oldest(std::deque<Ticket>& under_way) {
    Status status = Status::ok;
    runtime_->wait(under_way.front(), status);
    under_way.pop_front();
    if (status != Status::ok) throw Error(status, runtime_->failure());
  }

  Run counted(const std::vector<double>& submitted_us, std::size_t last) const {
    Run run;
    for (const TaskSpan& span : runtime_->spans()) {
      if (span.inference <= warm_ || span.inference > std::max(last, warm_ + 1)) continue;
      run.spans.push_back(span);
      if (span.task == 0)
        run.wait_us.push_back(span.start_us - submitted_us[static_cast<std::size_t>(span.inference) - 1]);
    }
    return run;
  }

  std::size_t places_;
  std::size_t warm_;
  std::unique_ptr<Runtime> runtime_;
  std::vector<std::vector<float>> inputs_;
  std::vector<std::vector<float>> outputs_;
  std::vector<const float*> input_pointers_;
  std::vector<std::vector<float*>> output_pointers_;
};

// The longest hundredth is left out: pauses of the host, which are none of the task's.
void add_spans(const Run& run, Samples& samples) {
  for (const TaskSpan& span : run.spans)
    samples[span.task][span.element].push_back(span.end_us - span.start_us);
  for (auto& elements : samples)
    for (std::vector<double>& times : elements) {
      std::sort(times.begin(), times.end());
      times.resize(times.size() - (times.size() + 50) / 100);
    }
}

// Rows of which one element takes all that it can.
Rows alone_on(const Rows& rows, std::size_t element) {
  Rows alone = rows;
  for (CostRow& row : alone)
    for (std::size_t i = 0; i < row.size(); ++i)
      if (i != element && row[element] < kNever) row[i] = kNever;
  return alone;
}

double median(std::vector<double> numbers) {
  if (numbers.empty()) return 0.0;
  std::sort(numbers.begin(), numbers.end());
  return numbers[numbers.size() / 2];
}

double mean(const std::vector<double>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(numbers.size());
}

// From the end of a task until the next begins, where only one runs at a time.
double median_gap_us(const Run& run) {
  std::vector<double> gaps_us;
  for (std::size_t i = 1; i < run.spans.size(); ++i)
    if (run.spans[i].inference == run.spans[i - 1].inference)
      gaps_us.push_back(std::max(0.0, run.spans[i].start_us - run.spans[i - 1].end_us));
  return median(std::move(gaps_us));
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", value);
  return text;
}

// From the shortest to the longest; of many those that are spread evenly over all.
std::string list(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const std::size_t kept = std::min(samples.size(), kMostSamples);
  std::string text;
  for (std::size_t i = 0; i < kept; ++i)
    text += (i > 0 ? ", " : "") + number(samples[kept > 1 ? i * (samples.size() - 1) / (kept - 1) : 0]);
  return "[" + text + "]";
}

// Whether an element was measured before under another name, so that its times are known.
std::size_t first_like(const std::vector<ElementOptions>& elements, std::size_t element) {
  for (std::size_t i = 0; i < element; ++i)
    if (elements[i].type == elements[element].type && elements[i].vendor == elements[element].vendor)
      return i;
  return element;
}

struct TaskTimes {
  Samples alone;
  Samples beside;  // While all elements work.
  double handover_us = 0.0;
  double wake_us = 0.0;
};

// One inference at a time on each element, then one more than there are elements on all of them: so
// that inferences wait for each other and change elements, as they do under load.
TaskTimes measure(const std::shared_ptr<const Network>& network, const RuntimeOptions& options,
                  const Rows& rows) {
  const std::size_t count = options.elements.size();
  const Samples nothing(rows.size(), std::vector<std::vector<double>>(count));
  TaskTimes times{nothing, nothing, 0.0, 0.0};
  for (std::size_t element = 0; element < count; ++element) {
    if (first_like(options.elements, element) != element) continue;
    const Run run = Bench(network, options, alone_on(rows, element), 1).run();
    add_spans(run, times.alone);
    times.handover_us = std::max(times.handover_us, median_gap_us(run));
    times.wake_us = std::max(times.wake_us, median(run.wait_us));
  }
  if (count > 1) add_spans(Bench(network, options, rows, count + 1).run(), times.beside);
  return times;
}

// What a task takes on an element, as an object of JSON; empty where it was not measured there.
std::string row_of(const TaskTimes& times, const std::vector<ElementOptions>& elements,
                   std::size_t task, std::size_t element) {
  const std::size_t like = first_like(elements, element);
  const std::vector<double>& samples = times.alone[task][like];
  if (samples.empty()) return "";
  std::vector<double> beside;
  for (std::size_t i = 0; i < elements.size(); ++i)
    if (first_like(elements, i) == like)
      beside.insert(beside.end(), times.beside[task][i].begin(), times.beside[task][i].end());
  const double factor = beside.empty() ? 1.0 : std::max(1.0, mean(beside) / mean(samples));
  return "\"processor\": " + quoted(elements[element].name) +
         ", \"median_us\": " + number(median(samples)) + ", \"beside\": " + number(factor) +
         ",\n   \"samples_us\": " + list(samples);
}

}  // namespace

void write_task_times(const std::string& path, const std::shared_ptr<const Network>& network,
                      const RuntimeOptions& options, const std::vector<CostRow>& rows) {
  const TaskTimes times = measure(network, options, rows);
  const std::vector<std::string> names = task_names(*network);
  const std::string aside = path + ".unfinished";
  std::ofstream file(aside, std::ios::trunc);
  file << "{\"format\": 1, \"costs\": \"measured\", \"handover_us\": " << number(times.handover_us)
       << ", \"wake_us\": " << number(times.wake_us) << ",\n \"processors\": [";
  for (std::size_t i = 0; i < options.elements.size(); ++i)
    file << (i > 0 ? ", " : "") << quoted(options.elements[i].name);
  file << "],\n \"tasks\": [";
  const char* comma = "\n  ";
  for (std::size_t task = 0; task < rows.size(); ++task)
    for (std::size_t i = 0; i < options.elements.size(); ++i) {
      const std::string row = rows[task][i] < kNever ? row_of(times, options.elements, task, i) : "";
      if (row.empty()) continue;
      file << comma << "{\"application\": " << quoted(network->name())
           << ", \"task\": " << names[task] << ", " << row << "}";
      comma = ",\n  ";
    }
  file << "\n]}\n";
  file.close();
  if (!file || std::rename(aside.c_str(), path.c_str()) != 0)
    throw Error(Status::bad_input, path + ", cannot be written");
}

}  // namespace nnstretch
