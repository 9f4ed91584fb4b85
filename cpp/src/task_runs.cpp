#include "task_runs.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <utility>

#include "nnstretch/error.hpp"

namespace nnstretch {
namespace {

// Inferences of each network.
constexpr std::size_t kFewest = 21;
constexpr std::size_t kMost = 400;
constexpr std::size_t kWarm = 3;
constexpr double kLongEnough_us = 2e6;

struct Buffers {
  std::vector<std::vector<float>> inputs;
  std::vector<std::vector<float>> outputs;
  std::vector<const float*> input_pointers;
  std::vector<std::vector<float*>> output_pointers;  // By what is under way.
  std::size_t submitted = 0;
};

Buffers buffers_of(const Network& network, std::size_t at_once) {
  Buffers buffers;
  for (const Port& port : network.inputs()) {
    const float number = port.numbers == Numbers::whole ? 0.0F : 0.5F;
    buffers.inputs.emplace_back(static_cast<std::size_t>(port.elements), number);
    buffers.input_pointers.push_back(buffers.inputs.back().data());
  }
  for (std::size_t i = 0; i < at_once; ++i) {
    buffers.output_pointers.emplace_back();
    for (const Port& port : network.outputs()) {
      buffers.outputs.emplace_back(static_cast<std::size_t>(port.elements));
      buffers.output_pointers.back().push_back(buffers.outputs.back().data());
    }
  }
  return buffers;
}

class Bench {
 public:
  Bench(const std::vector<MeasuredNetwork>& networks, RuntimeOptions options, std::size_t at_once)
      : networks_(networks), at_once_(at_once), warm_(kWarm * at_once * networks.size()) {
    std::size_t tasks = 0;
    for (const MeasuredNetwork& measured : networks)
      tasks = std::max(tasks, measured.rows.size());
    options.trace_spans = tasks * (kMost * networks.size() + warm_ + at_once);
    runtime_ = std::make_unique<Runtime>(std::move(options));
    for (const MeasuredNetwork& measured : networks) {
      runtime_->open(measured.network, at_once, measured.rows);
      buffers_.push_back(buffers_of(*measured.network, at_once));
    }
    runtime_->start();
  }

  std::vector<TimedTask> run() {
    std::mt19937 generator(1);
    std::deque<Ticket> under_way;
    const std::size_t fewest = warm_ + kFewest * networks_.size();
    const std::size_t most = warm_ + kMost * networks_.size();
    const double enough_us = runtime_->now_us() + kLongEnough_us * static_cast<double>(networks_.size());
    while (submitted_us_.size() < most) {
      if (submitted_us_.size() >= fewest && runtime_->now_us() > enough_us) break;
      if (under_way.size() == at_once_) wait_oldest(under_way);
      under_way.push_back(submit(generator() % networks_.size()));
    }
    const std::size_t last = submitted_us_.size() - at_once_;  // Later ones end beside fewer others.
    while (!under_way.empty()) wait_oldest(under_way);
    return counted(std::max(last, warm_ + 1));
  }

 private:
  Ticket submit(std::size_t network) {
    Buffers& buffers = buffers_[network];
    submitted_us_.push_back(runtime_->now_us());
    const std::size_t slot = buffers.submitted++ % at_once_;
    return runtime_->submit(network, buffers.input_pointers.data(),
                            buffers.output_pointers[slot].data());
  }

  void wait_oldest(std::deque<Ticket>& under_way) {
    Status status = Status::ok;
    std::string failure;
    runtime_->wait(under_way.front(), status, -1.0, &failure);
    under_way.pop_front();
    if (status != Status::ok) throw Error(status, failure);
  }

  std::vector<TimedTask> counted(std::size_t last) const {
    std::vector<TaskSpan> spans = runtime_->spans();
    std::stable_sort(spans.begin(), spans.end(), [](const TaskSpan& a, const TaskSpan& b) {
      return a.start_us < b.start_us;
    });
    std::vector<TimedTask> timed;
    std::vector<const TaskSpan*> before(runtime_->options().elements.size(), nullptr);
    std::map<std::pair<std::uint64_t, std::size_t>, const TaskSpan*> ended;
    for (const TaskSpan& span : spans) {
      const TaskSpan* const previous = std::exchange(before[span.element], &span);
      ended[{span.inference, span.task}] = &span;
      if (span.inference > warm_ && span.inference <= last)
        timed.push_back(timed_task(span, previous, ended));
    }
    return timed;
  }

  TimedTask timed_task(
      const TaskSpan& span, const TaskSpan* previous,
      const std::map<std::pair<std::uint64_t, std::size_t>, const TaskSpan*>& ended) const {
    TimedTask timed;
    timed.span = span;
    const TaskSpan* last_need = nullptr;
    bool straight = false;
    for (const std::size_t need : networks_[span.network].network->tasks()[span.task].needs) {
      const TaskSpan* const writer = ended.at({span.inference, need});
      if (!last_need || writer->end_us > last_need->end_us) last_need = writer;
      straight = straight || writer == previous;
    }
    const double ready_us = last_need ? last_need->end_us
                                      : submitted_us_[static_cast<std::size_t>(span.inference) - 1];
    timed.switched = last_need && !straight;
    const double gap_us = std::max(0.0, span.start_us - ready_us);
    if (!previous || previous->end_us < ready_us)
      timed.wake_us = gap_us;
    else if (last_need == previous)
      timed.handover_us = gap_us;
    return timed;
  }

  const std::vector<MeasuredNetwork>& networks_;
  std::size_t at_once_;
  std::size_t warm_;
  std::vector<Buffers> buffers_;
  std::vector<double> submitted_us_;  // By the number of the inference, from 1.
  std::unique_ptr<Runtime> runtime_;  // The last: its threads end before the buffers do.
};

}  // namespace

std::vector<TimedTask> timed_tasks(const std::vector<MeasuredNetwork>& networks,
                                   const RuntimeOptions& options, std::size_t at_once) {
  return Bench(networks, options, at_once).run();
}

}  // namespace nnstretch
