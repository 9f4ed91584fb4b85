// The runner of one exported network: inputs from .npy files or drawn, times, traces, cost tables.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "critical_path.hpp"
#include "decimal.hpp"
#include "json.hpp"
#include "network.hpp"
#include "nnstretch/costs.hpp"
#include "nnstretch/error.hpp"
#include "nnstretch/runtime.hpp"
#include "npy.hpp"
#include "prepared.hpp"
#include "run_arguments.hpp"
#include "run_arrays.hpp"
#include "run_files.hpp"
#include "run_graph.hpp"
#include "run_ports.hpp"
#include "task_times.hpp"
#include "trace.hpp"
#include "whole_file.hpp"

namespace {

using namespace nnstretch;

// The file that the export put beside the folder in which this program was built.
std::string default_weights(const char* program) {
  std::string path = real_path("/proc/self/exe");
  if (path == "/proc/self/exe") path = program;
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash);
  return folder + "/../weights.bin";
}

double quantile(const std::vector<double>& sorted, double share) {
  const double position = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

struct Outcome {
  std::vector<double> latency_us;
  double seconds = 0.0;
  long too_late = 0;
  bool last_is_late = false;  // Its outputs are not complete.
};

// Inferences with as many under way as there are places; the oldest is waited for first.
Outcome run_all(Runtime& runtime, const RunArguments& arguments, const Arrays& inputs,
                std::vector<Arrays>& outputs) {
  struct Flight {
    Ticket ticket;
    double start_us = 0.0;
  };
  std::vector<const float*> input_pointers;
  for (const auto& input : inputs) input_pointers.push_back(input.data());
  std::vector<std::vector<float*>> output_pointers;
  for (auto& place : outputs) {
    output_pointers.emplace_back();
    for (std::vector<float>& output : place) output_pointers.back().push_back(output.data());
  }
  Outcome outcome;
  outcome.latency_us.reserve(static_cast<std::size_t>(arguments.repeat));
  std::vector<Flight> flights(outputs.size());
  const double start_us = runtime.now_us();
  const auto places = static_cast<std::size_t>(arguments.places);
  const auto total = static_cast<std::size_t>(arguments.repeat);
  for (std::size_t i = 0; i < total + places; ++i) {
    if (i >= places && i - places < total) {
      const Flight& oldest = flights[i % places];
      Status status = Status::ok;
      std::string failure;
      runtime.wait(oldest.ticket, status, -1.0, &failure);
      outcome.latency_us.push_back(runtime.now_us() - oldest.start_us);
      outcome.last_is_late = status == Status::too_late;
      if (outcome.last_is_late) ++outcome.too_late;
      if (status == Status::failed) throw Error(Status::failed, failure);
    }
    if (i < total) {
      const double now_us = runtime.now_us();
      flights[i % places] = {
          runtime.submit(0, input_pointers.data(), output_pointers[i % places].data(),
                         SubmitOptions{arguments.deadline_us, 0}),
          now_us};
    }
  }
  outcome.seconds = (runtime.now_us() - start_us) / 1e6;
  return outcome;
}

void print(const Network& network, const RunArguments& arguments, const Runtime& runtime,
           Outcome outcome, double start_ms) {
  std::vector<double>& sorted = outcome.latency_us;
  std::sort(sorted.begin(), sorted.end());
  const std::vector<TaskSpan> spans = runtime.spans();
  const CriticalPath longest = critical_path(network, spans);
  const std::string path = decimal(longest.us / 1000, arguments.json ? 4 : 3);
  const std::string of_whom = "critical path of inference " + std::to_string(longest.inference);
  const std::string known = arguments.json ? path : of_whom + " " + path;
  const std::string unknown = arguments.json ? "null" : "no critical path is known";
  const double throughput = static_cast<double>(arguments.repeat) / outcome.seconds;
  const char* form =
      arguments.json
          ? "{\"network\": %s, \"kernels\": \"%s\", \"library_calls\": %zu, \"instruction_set\": \"%s\", \"policy\": \"%s\", \"inferences\": %ld, "
            "\"latency_ms\": {\"min\": %.4f, \"median\": %.4f, \"p90\": %.4f, \"p99\": %.4f}, "
            "\"critical_path_ms\": %s, \"throughput_per_s\": %.3f, \"too_late\": %ld, "
            "\"tasks\": %zu, \"arena_bytes\": %lld, \"start_ms\": %.2f}\n"
          : "%s (kernels %s for %zu calls, %s), policy %s, %ld inferences\n"
            "latency: min %.3f ms, median %.3f, p90 %.3f, p99 %.3f; %s\n"
            "throughput: %.2f per second, %ld too late\n"
            "%zu tasks, %lld bytes of working memory an inference, ready after %.1f ms\n";
  const std::string name = arguments.json ? quoted(network.name()) : network.name();
  const bool library = uses_library(arguments.kernels);
  const char* kernels = library ? kernel_library() : "portable";
  const Prepared& prepared = network.prepared(arguments.kernels, host_only(arguments.elements));
  const std::size_t counted = library ? prepared.library_calls() : network.calls().size();
  std::printf(form, name.c_str(), kernels, counted, instruction_set(), arguments.policy.c_str(), arguments.repeat,
              sorted.front() / 1000, quantile(sorted, 0.5) / 1000, quantile(sorted, 0.9) / 1000,
              quantile(sorted, 0.99) / 1000, (longest.inference > 0 ? known : unknown).c_str(), throughput, outcome.too_late,
              network.tasks().size(), static_cast<long long>(network.arena_floats() * 4), start_ms);
}

// One element of the host leaves no choice that measured costs could decide, but whether a
// deadline can be met.
bool needs_costs(const RunArguments& arguments) {
  return arguments.elements.size() > 1 || arguments.elements[0].vendor ||
         arguments.elements[0].emulated || arguments.deadline_us < kNever ||
         !arguments.graph.empty() || !arguments.measure.empty() || arguments.policy == "planned";
}

std::vector<CostRow> rows_of(const Network& network, const RunArguments& arguments) {
  if (arguments.costs.empty() && !needs_costs(arguments))
    return std::vector<CostRow>(network.tasks().size(), CostRow{1.0});
  const CostTable costs =
      arguments.costs.empty() ? measure_costs(network, arguments.elements, arguments.kernels, 3)
                              : read_costs(arguments.costs);
  return task_costs(network, costs, arguments.elements);
}

void write_profile(const Network& network, const RunArguments& arguments) {
  const CostTable costs = measure_costs(network, arguments.elements, arguments.kernels, 11);
  const auto emulated = [](const ElementOptions& element) { return element.emulated; };
  if (std::all_of(arguments.elements.begin(), arguments.elements.end(), emulated))
    refuse("--profile, command line, emulated elements have no times of their own to measure");
  for (const ElementOptions& element : arguments.elements) {
    const auto measured = [&](const auto& row) { return row.second.count(element.type) > 0; };
    if (!element.emulated && std::none_of(costs.begin(), costs.end(), measured))
      refuse("element " + element.name + " supports no call of " + network.name());
  }
  write_costs(arguments.profile, costs);
  std::printf("%s: costs of %zu different calls, median of 11\n", arguments.profile.c_str(),
              costs.size());
  for (const ElementOptions& element : arguments.elements)
    if (element.emulated)
      std::printf("%s: none of %s, it is emulated: add to calls what they shall take there as \"%s\"\n",
                  arguments.profile.c_str(), element.name.c_str(), element.type.c_str());
}

RuntimeOptions runtime_options(const Network& network, const RunArguments& arguments) {
  RuntimeOptions options;
  options.elements = arguments.elements;
  options.policy = arguments.policy;
  options.kernels = arguments.kernels;
  options.queueing = arguments.queueing;
  options.trace_spans = arguments.trace.empty() ? network.tasks().size() * 64 : 1000000;
  return options;
}

void write_outputs(const RunArguments& arguments, const Runtime& runtime, const Arrays& outputs) {
  const std::vector<Port>& ports = runtime.network(0).outputs();
  const std::vector<std::string> paths = paths_by_port(arguments.outputs, ports, "--output");
  for (std::size_t i = 0; i < paths.size(); ++i)
    if (!paths[i].empty()) write_npy(paths[i], ports[i].shape, outputs[i]);
}

void write_spans(const RunArguments& arguments, const Runtime& runtime) {
  if (arguments.trace.empty()) return;
  const std::size_t kept = write_trace(arguments.trace, runtime);
  if (kept < runtime.tasks_run())
    std::fprintf(stderr, "run: %s holds the first %zu tasks of %llu\n", arguments.trace.c_str(), kept,
                 static_cast<unsigned long long>(runtime.tasks_run()));
}

// Whatever ends the scope, no thread computes on its arrays any more.
struct Closing {
  Runtime& runtime;
  ~Closing() { runtime.close(); }
};

void infer(Runtime& runtime, const std::shared_ptr<const Network>& network, std::vector<CostRow> rows,
           const RunArguments& arguments, std::chrono::steady_clock::time_point begun) {
  const Arrays inputs = load_inputs(*network, arguments);
  const Expected expected = load_expected(*network, arguments);
  const auto places = static_cast<std::size_t>(arguments.places);
  runtime.open(network, places, std::move(rows));
  std::vector<Arrays> outputs(places);
  for (Arrays& place : outputs)
    for (const Port& port : network->outputs())
      place.emplace_back(static_cast<std::size_t>(port.elements));
  const Closing closing{runtime};
  runtime.start();
  const std::chrono::duration<double, std::milli> start = std::chrono::steady_clock::now() - begun;
  const Outcome outcome = run_all(runtime, arguments, inputs, outputs);
  const Arrays& last = outputs[static_cast<std::size_t>(arguments.repeat - 1) % places];
  if (!outcome.last_is_late) write_outputs(arguments, runtime, last);
  write_spans(arguments, runtime);
  print(*network, arguments, runtime, outcome, start.count());
  if (outcome.last_is_late) {
    if (arguments.outputs.empty() && arguments.expected.empty()) return;
    std::fflush(stdout);
    refuse("--deadline-ms, command line, the last inference was too late: it has no outputs");
  }
  for (const std::string& line : compare_outputs(expected, last))
    if (!arguments.json) std::printf("%s\n", line.c_str());
}

void run(int count, char** words) {
  const auto begun = std::chrono::steady_clock::now();
  RunArguments arguments = run_arguments(count, words);
  if (arguments.help) {
    std::fputs(run_help().c_str(), stdout);
    return;
  }
  if (arguments.weights.empty()) arguments.weights = default_weights(words[0]);
  const auto weights = std::make_shared<Weights>(Weights::open(arguments.weights));
  const std::shared_ptr<const Network> network = make_network(weights);
  check_files(arguments, *network);
  if (!arguments.profile.empty()) return write_profile(*network, arguments);
  const RuntimeOptions options = runtime_options(*network, arguments);
  // Options that cannot be are refused before seconds go into measuring.
  auto runtime = std::make_unique<Runtime>(options);
  std::vector<CostRow> rows = rows_of(*network, arguments);
  if (arguments.policy == "planned") keep_placements(*network, arguments.elements, rows);
  if (!arguments.graph.empty()) {
    write_graph(arguments.graph, *network, arguments.elements, rows);
    std::printf("%s: %zu tasks\n", arguments.graph.c_str(), rows.size());
  } else if (!arguments.measure.empty()) {
    runtime.reset();  // Its units of vendors are measured.
    write_task_times(arguments.measure, {{network, rows}}, options);
    std::printf("%s: times of %zu tasks\n", arguments.measure.c_str(), rows.size());
  } else {
    infer(*runtime, network, std::move(rows), arguments, begun);
  }
}

// Throws Error where what was printed went nowhere, as on a full disk.
void flush_output() {
  const bool flushed = std::fflush(stdout) == 0;
  if (!flushed || std::ferror(stdout))
    refuse("standard output, the result cannot be written there");
}

}  // namespace

int main(int count, char** words) {
  try {
    leave_nothing_unfinished();
    run(count, words);
    flush_output();
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "run: %s\n", error.what());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "run: no memory\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "run: %s\n", error.what());
  } catch (...) {
    std::fprintf(stderr, "run: an element threw something that is no exception\n");
  }
  return 1;
}
