// Two networks whose inferences arrive at given times: the latency of each, from when it was due.
//
//   arrivals POLICY CORRECTION ELEMENTS WEIGHTS1 COSTS1 WEIGHTS2 COSTS2 [SPANS] < times
//                                                  -DFIRST=nns_model_A -DSECOND=nns_model_B
//
// CORRECTION is on or off: whether costs are learnt from what tasks take. With a name of a file,
// what was done is written there, a line each, times in us: `inference NETWORK DUE SUBMITTED` in
// order, then `task INFERENCE TASK ELEMENT START END`, inferences counted from 0.
//
// A line of input is a time in ms and the number of a network, in order of time; a line of output
// is the latency in ms. The first inference of each network is not among them, it warms up.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "nnstretch/costs.hpp"
#include "nnstretch/error.hpp"
#include "nnstretch/model.hpp"
#include "nnstretch/runtime.hpp"
#include "task_runs.hpp"
#include "vendor.hpp"

extern "C" const nns_model* FIRST(void);
extern "C" const nns_model* SECOND(void);

namespace {

using namespace nnstretch;

// Of each network: more than are ever under way at loads below capacity, for an inference that waits
// for a place holds up all that are due after it.
constexpr std::size_t kPlaces = 128;

struct Arrival {
  double at_us = 0.0;
  std::size_t network = 0;
};

std::vector<Arrival> read_arrivals() {
  std::vector<Arrival> arrivals;
  double at_ms = 0.0;
  std::size_t network = 0;
  while (std::cin >> at_ms >> network) {
    if (network > 1) throw Error(Status::bad_input, "there are two networks, 0 and 1");
    arrivals.push_back({at_ms * 1000.0, network});
  }
  return arrivals;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char letter : text)
    if (letter == ',')
      parts.emplace_back();
    else
      parts.back() += letter;
  return parts;
}

// Inputs, and outputs of each place.
struct Buffers {
  std::vector<float> input;
  std::vector<float> output;
  std::deque<Ticket> under_way;
  std::size_t submitted = 0;
};

class Load {
 public:
  explicit Load(Runtime& runtime) : runtime_(runtime) {
    for (std::size_t i = 0; i < 2; ++i) {
      const Network& network = runtime.network(i);
      buffers_[i].input.resize(static_cast<std::size_t>(network.inputs()[0].elements), 0.5F);
      buffers_[i].output.resize(static_cast<std::size_t>(network.outputs()[0].elements) * kPlaces);
    }
  }

  Ticket submit(std::size_t network) {
    Buffers& buffers = buffers_[network];
    give_back_ended(network);
    if (buffers.under_way.size() == kPlaces) wait_oldest(network);
    const std::size_t size = buffers.output.size() / kPlaces;
    const float* const inputs[1] = {buffers.input.data()};
    float* const outputs[1] = {buffers.output.data() + size * (buffers.submitted++ % kPlaces)};
    buffers.under_way.push_back(runtime_.submit(network, inputs, outputs));
    return buffers.under_way.back();
  }

  void wait_all() {
    for (std::size_t network = 0; network < 2; ++network)
      while (!buffers_[network].under_way.empty()) wait_oldest(network);
  }

 private:
  // As whoever wants an answer does: a place whose arena was used just now serves the next
  // inference. Kept until all are taken, 32 arenas in turn would find no cache warm.
  void give_back_ended(std::size_t network) {
    std::deque<Ticket>& under_way = buffers_[network].under_way;
    while (!under_way.empty() && has_ended(under_way.front(), 0.0)) under_way.pop_front();
  }

  void wait_oldest(std::size_t network) {
    (void)has_ended(buffers_[network].under_way.front(), -1.0);
    buffers_[network].under_way.pop_front();
  }

  bool has_ended(const Ticket& ticket, double timeout_us) {
    Status status = Status::ok;
    if (!runtime_.wait(ticket, status, timeout_us)) return false;
    if (status != Status::ok) throw Error(status, "an inference did not end well");
    return true;
  }

  Runtime& runtime_;
  std::array<Buffers, 2> buffers_;
};

void write_spans(const char* path, const std::vector<Arrival>& arrivals,
                 const std::vector<double>& submitted_us, const std::vector<std::uint64_t>& numbers,
                 const std::vector<TaskSpan>& spans, double begun_us) {
  std::FILE* const file = std::fopen(path, "w");
  if (!file) throw Error(Status::failed, std::string("cannot write ") + path);
  std::map<std::uint64_t, std::size_t> places;
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    places[numbers[i]] = i;
    std::fprintf(file, "inference %zu %.3f %.3f\n", arrivals[i].network, arrivals[i].at_us,
                 submitted_us[i]);
  }
  for (const TaskSpan& span : spans) {
    const auto place = places.find(span.inference);
    if (place == places.end()) continue;  // The first ones, that warm up.
    std::fprintf(file, "task %zu %zu %zu %.3f %.3f\n", place->second, span.task, span.element,
                 span.start_us - begun_us, span.end_us - begun_us);
  }
  if (std::fclose(file) != 0) throw Error(Status::failed, std::string("cannot write ") + path);
}

void run(char** words) {
  RuntimeOptions options;
  options.policy = words[1];
  options.correct_costs = words[2] == std::string("on");
  options.elements = elements_of(split(words[3]));
  const nns_model* const models[2] = {FIRST(), SECOND()};
  std::vector<MeasuredNetwork> networks;
  for (int i = 0; i < 2; ++i) {
    const auto weights = std::make_shared<Weights>(Weights::open(words[4 + 2 * i]));
    const std::shared_ptr<const Network> network = models[i]->make(weights);
    networks.push_back(
        {network, task_costs(*network, read_costs(words[5 + 2 * i]), options.elements)});
  }
  const std::vector<Arrival> arrivals = read_arrivals();
  for (const MeasuredNetwork& each : networks)
    options.trace_spans += each.rows.size() * (arrivals.size() + 1);
  Runtime runtime(options);
  for (const MeasuredNetwork& each : networks) runtime.open(each.network, kPlaces, each.rows);
  Load load(runtime);
  runtime.start();
  for (std::size_t i = 0; i < 2; ++i) load.submit(i);
  load.wait_all();
  const auto begun = std::chrono::steady_clock::now();
  const double begun_us = runtime.now_us();
  std::vector<std::uint64_t> numbers;
  std::vector<double> submitted_us;
  for (const Arrival& arrival : arrivals) {
    std::this_thread::sleep_until(begun + std::chrono::nanoseconds(
                                              static_cast<std::int64_t>(arrival.at_us * 1000.0)));
    submitted_us.push_back(runtime.now_us() - begun_us);
    numbers.push_back(load.submit(arrival.network).number);
  }
  load.wait_all();
  std::map<std::uint64_t, double> end_us;
  for (const TaskSpan& span : runtime.spans())
    end_us[span.inference] = std::max(end_us[span.inference], span.end_us);
  for (std::size_t i = 0; i < arrivals.size(); ++i)
    std::printf("%.3f\n", (end_us.at(numbers[i]) - begun_us - arrivals[i].at_us) / 1000.0);
  if (words[8]) write_spans(words[8], arrivals, submitted_us, numbers, runtime.spans(), begun_us);
}

}  // namespace

int main(int count, char** words) {
  if (count != 8 && count != 9) return 2;
  try {
    run(words);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "arrivals: %s\n", error.what());
  }
  return 1;
}
