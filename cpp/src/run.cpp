// The runner of one exported network: inputs from .npy files or drawn, times, traces, cost tables.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cost_table.hpp"
#include "json.hpp"
#include "network.hpp"
#include "nnstretch/error.hpp"
#include "nnstretch/runtime.hpp"
#include "npy.hpp"
#include "prepared.hpp"
#include "trace.hpp"
#include "vendor.hpp"

namespace {

using namespace nnstretch;

constexpr const char* kHelp =
    R"(run: compute an exported network

  run --input x.npy --output y.npy               once, on one core
  run --elements cpu,cpu --policy eft --repeat 100 --places 4 --trace t.json
  run --profile costs.json                        measure every call, for --costs and `simulate`

  --weights FILE     weights of the network (default: weights.bin beside the folder of this program)
  --input FILE.npy   an input, in the order of the network's; without, numbers are drawn
  --output FILE.npy  where to write an output of the last inference, in order
  --elements LIST    processing elements: cpu, cpu:CORE, emulated:TYPE, library:PATH of a vendor;
                     default cpu
  --policy NAME      )"
    "rr met eft etf heft_rt mct olb min_min least_slack least_slack_drop,\n"
    "                     or planned: tasks where the exported plan put them; default eft"
    R"(
  --kernels SET      onednn, where this program was built with it, or portable; default the first
  --no-queueing      only idle elements get work
  --repeat N         inferences (default 1)
  --places N         how many may be under way at once (default 1)
  --deadline-ms X    inferences that end later are counted as too late
  --costs FILE       microseconds of every call by element type; without, calls are measured first
  --profile FILE     measure, write that table, and end
  --graph FILE       write the tasks with their costs, for `nnstretch simulate` and `schedule`, and end
  --trace FILE       spans of the tasks, for ui.perfetto.dev and `nnstretch report`
  --json             print the result as one JSON object
)";

struct Arguments {
  std::string weights, costs, profile, graph, trace, kernels, policy = "eft";
  std::vector<std::string> inputs, outputs;
  std::vector<ElementOptions> elements;
  long repeat = 1;
  long places = 1;
  double deadline_us = kNever;
  bool queueing = true;
  bool json = false;
};

[[noreturn]] void refuse(const std::string& why) { throw Error(Status::bad_input, why); }

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char letter : text)
    if (letter == separator)
      parts.emplace_back();
    else
      parts.back() += letter;
  return parts;
}

double number_of(const std::string& option, const std::string& text, double least, double most) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= least && value <= most))
    refuse(option + " is " + text + ", command line, it is a number from " +
           std::to_string(static_cast<long>(least)) + " on");
  return value;
}

Arguments arguments_of(int count, char** words) {
  static const std::vector<std::string> known{
      "--weights", "--input",  "--output",      "--elements", "--policy",  "--no-queueing", "--kernels",
      "--repeat",  "--places", "--deadline-ms", "--costs",    "--profile", "--graph", "--trace",
      "--json",    "--help"};
  Arguments arguments;
  arguments.elements = elements_of({"cpu"});
  for (int i = 1; i < count; ++i) {
    const std::string option = words[i];
    if (option == "--help") {
      std::cout << kHelp;
      std::exit(0);
    }
    if (option == "--json") {
      arguments.json = true;
      continue;
    }
    if (option == "--no-queueing") {
      arguments.queueing = false;
      continue;
    }
    if (std::find(known.begin(), known.end(), option) == known.end())
      refuse("unknown option " + option + ", command line, the closest is " +
             closest_name(option, known));
    if (i + 1 == count) refuse(option + " has no value, command line");
    const std::string value = words[++i];
    if (option == "--weights") arguments.weights = value;
    if (option == "--input") arguments.inputs.push_back(value);
    if (option == "--output") arguments.outputs.push_back(value);
    if (option == "--elements") arguments.elements = elements_of(split(value, ','));
    if (option == "--policy") arguments.policy = value;
    if (option == "--kernels") arguments.kernels = value;
    if (option == "--costs") arguments.costs = value;
    if (option == "--profile") arguments.profile = value;
    if (option == "--graph") arguments.graph = value;
    if (option == "--trace") arguments.trace = value;
    if (option == "--repeat") arguments.repeat = static_cast<long>(number_of(option, value, 1, 1e9));
    if (option == "--places") arguments.places = static_cast<long>(number_of(option, value, 1, 4096));
    if (option == "--deadline-ms") arguments.deadline_us = number_of(option, value, 0, 1e9) * 1000;
  }
  return arguments;
}

// The file that the export put beside the folder in which this program was built.
std::string default_weights(const char* program) {
  const std::string path = program;
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash);
  return folder + "/../weights.bin";
}

std::vector<float> drawn(std::int64_t count, std::mt19937& generator) {
  std::normal_distribution<float> normal(0.0F, 1.0F);
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (float& number : numbers) number = normal(generator);
  return numbers;
}

std::vector<std::vector<float>> load_inputs(const Network& network, const Arguments& arguments) {
  if (arguments.inputs.size() > network.inputs().size())
    refuse(std::to_string(arguments.inputs.size()) + " inputs for a network of " +
           std::to_string(network.inputs().size()));
  std::vector<std::vector<float>> inputs;
  std::mt19937 generator(0);
  for (std::size_t i = 0; i < network.inputs().size(); ++i) {
    const Port& port = network.inputs()[i];
    inputs.push_back(i < arguments.inputs.size() ? read_npy(arguments.inputs[i], port.shape)
                                                 : drawn(port.elements, generator));
  }
  return inputs;
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
};

// Inferences with as many under way as there are places; the oldest is waited for first.
Outcome run_all(Runtime& runtime, const Network& network, const Arguments& arguments,
                const std::vector<std::vector<float>>& inputs,
                std::vector<std::vector<std::vector<float>>>& outputs) {
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
  std::vector<Flight> flights;
  const double start_us = runtime.now_us();
  const auto places = static_cast<std::size_t>(arguments.places);
  const auto total = static_cast<std::size_t>(arguments.repeat);
  for (std::size_t i = 0; i < total + places; ++i) {
    if (i >= places && i - places < total) {
      const Flight& oldest = flights[i - places];
      Status status = Status::ok;
      runtime.wait(oldest.ticket, status);
      outcome.latency_us.push_back(runtime.now_us() - oldest.start_us);
      if (status == Status::too_late) ++outcome.too_late;
      if (status == Status::failed) throw Error(Status::failed, runtime.failure());
    }
    if (i < total) {
      const double now_us = runtime.now_us();
      flights.push_back({runtime.submit(0, input_pointers.data(), output_pointers[i % places].data(),
                                        SubmitOptions{arguments.deadline_us, 0}),
                         now_us});
    }
  }
  outcome.seconds = (runtime.now_us() - start_us) / 1e6;
  (void)network;
  return outcome;
}

// Longest chain of measured tasks through the network, us.
double critical_path_us(const Network& network, const std::vector<TaskSpan>& spans,
                        std::uint64_t inference) {
  std::vector<double> took_us(network.tasks().size(), 0.0);
  for (const TaskSpan& span : spans)
    if (span.inference == inference) took_us[span.task] = span.end_us - span.start_us;
  std::vector<double> end_us(took_us.size(), 0.0);
  double longest_us = 0.0;
  for (std::size_t task = 0; task < took_us.size(); ++task) {
    double start_us = 0.0;
    for (const std::size_t need : network.tasks()[task].needs)
      start_us = std::max(start_us, end_us[need]);
    end_us[task] = start_us + took_us[task];
    longest_us = std::max(longest_us, end_us[task]);
  }
  return longest_us;
}

// The network as a task graph of nnstretch: one task each, costs by element in microseconds.
void write_graph(const std::string& path, const Network& network,
                 const std::vector<ElementOptions>& elements, const std::vector<CostRow>& rows) {
  const std::vector<Task>& tasks = network.tasks();
  std::vector<std::string> names;
  for (const Task& task : tasks) {
    const bool twice = std::count_if(tasks.begin(), tasks.end(), [&](const Task& other) {
                         return other.name == task.name;
                       }) > 1;
    names.push_back(quoted(twice ? task.name + "#" + std::to_string(names.size()) : task.name));
  }
  const std::string aside = path + ".unfinished";
  std::ofstream file(aside, std::ios::trunc);
  file << "{\"tasks\": [";
  for (std::size_t i = 0; i < names.size(); ++i) file << (i > 0 ? ", " : "") << names[i];
  file << "],\n \"processors\": {";
  for (std::size_t i = 0; i < elements.size(); ++i)
    file << (i > 0 ? ", " : "") << quoted(elements[i].name) << ": " << quoted(elements[i].type);
  file << "},\n \"cost\": {";
  for (std::size_t task = 0; task < rows.size(); ++task) {
    file << (task > 0 ? ",\n  " : "\n  ") << names[task] << ": {";
    const char* comma = "";
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (rows[task][i] == kNever) continue;
      char number[32];
      std::snprintf(number, sizeof number, "%.3f", rows[task][i]);
      file << comma << quoted(elements[i].name) << ": " << number;
      comma = ", ";
    }
    file << "}";
  }
  file << "},\n \"edges\": [";
  const char* comma = "\n  ";
  for (std::size_t task = 0; task < tasks.size(); ++task)
    for (const std::size_t need : tasks[task].needs) {
      file << comma << "{\"from\": " << names[need] << ", \"to\": " << names[task] << "}";
      comma = ",\n  ";
    }
  file << "]}\n";
  file.close();
  if (!file || std::rename(aside.c_str(), path.c_str()) != 0) refuse(path + ", cannot be written");
}

void print(const Network& network, const Arguments& arguments, const Runtime& runtime,
           Outcome outcome, double start_ms) {
  std::vector<double>& sorted = outcome.latency_us;
  std::sort(sorted.begin(), sorted.end());
  const std::vector<TaskSpan> spans = runtime.spans();
  const double path_us = critical_path_us(network, spans, spans.empty() ? 0 : spans.back().inference);
  const double throughput = static_cast<double>(arguments.repeat) / outcome.seconds;
  const char* form =
      arguments.json
          ? "{\"network\": %s, \"kernels\": \"%s\", \"library_calls\": %zu, \"instruction_set\": \"%s\", \"policy\": \"%s\", \"inferences\": %ld, "
            "\"latency_ms\": {\"min\": %.4f, \"median\": %.4f, \"p90\": %.4f, \"p99\": %.4f}, "
            "\"critical_path_ms\": %.4f, \"throughput_per_s\": %.3f, \"too_late\": %ld, "
            "\"tasks\": %zu, \"arena_bytes\": %lld, \"start_ms\": %.2f}\n"
          : "%s (kernels %s for %zu calls, %s), policy %s, %ld inferences\n"
            "latency: min %.3f ms, median %.3f, p90 %.3f, p99 %.3f; critical path of the last %.3f\n"
            "throughput: %.2f per second, %ld too late\n"
            "%zu tasks, %lld bytes of working memory an inference, ready after %.1f ms\n";
  const std::string name = arguments.json ? quoted(network.name()) : network.name();
  const bool library = uses_library(arguments.kernels);
  const char* kernels = library ? kernel_library() : "portable";
  const Prepared& prepared = network.prepared(arguments.kernels, host_only(arguments.elements));
  const std::size_t counted = library ? prepared.library_calls() : network.calls().size();
  std::printf(form, name.c_str(), kernels, counted, instruction_set(), arguments.policy.c_str(), arguments.repeat,
              sorted.front() / 1000, quantile(sorted, 0.5) / 1000, quantile(sorted, 0.9) / 1000,
              quantile(sorted, 0.99) / 1000, path_us / 1000, throughput, outcome.too_late,
              network.tasks().size(), static_cast<long long>(network.arena_floats() * 4), start_ms);
}

// One element of the host leaves no choice that measured costs could decide, but whether a
// deadline can be met.
bool needs_costs(const Arguments& arguments) {
  return arguments.elements.size() > 1 || arguments.elements[0].vendor ||
         arguments.elements[0].emulated || arguments.deadline_us < kNever ||
         !arguments.graph.empty() || arguments.policy == "planned";
}

std::vector<CostRow> rows_of(const Network& network, const Arguments& arguments) {
  if (arguments.costs.empty() && !needs_costs(arguments))
    return std::vector<CostRow>(network.tasks().size(), CostRow{1.0});
  const CostTable costs =
      arguments.costs.empty() ? measure_costs(network, arguments.elements, arguments.kernels, 3)
                              : read_costs(arguments.costs);
  return task_costs(network, costs, arguments.elements);
}

void run(int count, char** words) {
  const auto begun = std::chrono::steady_clock::now();
  Arguments arguments = arguments_of(count, words);
  if (arguments.weights.empty()) arguments.weights = default_weights(words[0]);
  const auto weights = std::make_shared<Weights>(Weights::open(arguments.weights));
  const std::shared_ptr<const Network> network = make_network(weights);
  if (!arguments.profile.empty()) {
    write_costs(arguments.profile, measure_costs(*network, arguments.elements, arguments.kernels, 11));
    std::printf("%s: costs of %zu calls, median of 11\n", arguments.profile.c_str(),
                network->calls().size());
    return;
  }
  if (arguments.outputs.size() > network->outputs().size())
    refuse(std::to_string(arguments.outputs.size()) + " outputs of a network of " +
           std::to_string(network->outputs().size()));
  const std::vector<std::vector<float>> inputs = load_inputs(*network, arguments);
  RuntimeOptions options;
  options.elements = arguments.elements;
  options.policy = arguments.policy;
  options.kernels = arguments.kernels;
  options.queueing = arguments.queueing;
  options.trace_spans = arguments.trace.empty() ? network->tasks().size() * 64 : 1000000;
  const auto places = static_cast<std::size_t>(arguments.places);
  Runtime runtime(options);
  std::vector<CostRow> rows = rows_of(*network, arguments);
  if (arguments.policy == "planned") keep_placements(*network, arguments.elements, rows);
  if (!arguments.graph.empty()) {
    write_graph(arguments.graph, *network, arguments.elements, rows);
    std::printf("%s: %zu tasks\n", arguments.graph.c_str(), rows.size());
    return;
  }
  runtime.open(network, places, std::move(rows));
  std::vector<std::vector<std::vector<float>>> outputs(places);
  for (auto& place : outputs)
    for (const Port& port : network->outputs())
      place.emplace_back(static_cast<std::size_t>(port.elements));
  runtime.start();
  const std::chrono::duration<double, std::milli> start = std::chrono::steady_clock::now() - begun;
  const Outcome outcome = run_all(runtime, *network, arguments, inputs, outputs);
  const auto last = static_cast<std::size_t>(arguments.repeat - 1) % places;
  for (std::size_t i = 0; i < arguments.outputs.size(); ++i)
    write_npy(arguments.outputs[i], network->outputs()[i].shape, outputs[last][i]);
  if (!arguments.trace.empty()) write_trace(arguments.trace, runtime);
  print(*network, arguments, runtime, outcome, start.count());
}

}  // namespace

int main(int count, char** words) {
  try {
    run(count, words);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "run: %s\n", error.what());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "run: no memory\n");
  }
  return 1;
}
