#include "run_arguments.hpp"

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "nnstretch/error.hpp"
#include "vendor.hpp"

namespace nnstretch {
namespace {

constexpr const char* kHelp =
    R"(run: compute an exported network

  run --input x.npy --output y.npy               once, on one core
  run --elements cpu,cpu --policy eft --repeat 100 --places 4 --trace t.json
  run --profile costs.json                        measure every call, for --costs and `simulate`

  --weights FILE     weights of the network (default: weights.bin beside the folder of this program)
  --input FILE.npy   an input, in the order of the network's; without, numbers are drawn
  --output FILE.npy  where to write an output of the last inference, in order
  --expect FILE.npy  what an output has to be, in order, to 1e-4 of its largest magnitude
                     of several inputs or outputs each may be named: --input NAME=FILE.npy
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
  --profile FILE     measure, all elements of the host at work, write that table, and end
  --graph FILE       write the tasks with their costs, for `nnstretch simulate` and `schedule`, and end
  --measure FILE     write what tasks take alone and beside others, with its spread, for
                     `nnstretch simulate --costs`, and end
  --trace FILE       spans of the tasks, for ui.perfetto.dev and `nnstretch report`
  --json             print the result as one JSON object
)";

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

}  // namespace

RunArguments run_arguments(int count, char** words) {
  static const std::vector<std::string> known{
      "--weights", "--input",  "--output",      "--elements", "--policy",  "--no-queueing", "--kernels",
      "--repeat",  "--places", "--deadline-ms", "--costs",    "--profile", "--graph",   "--measure", "--trace",
      "--json",    "--help",   "--expect"};
  RunArguments arguments;
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
      refuse("unknown option " + option + ", command line" + suggestion(option, known));
    const std::string value = i + 1 < count ? words[++i] : "";
    if (value.empty()) refuse(option + " has no value, command line");
    if (option == "--weights") arguments.weights = value;
    if (option == "--input") arguments.inputs.push_back(value);
    if (option == "--output") arguments.outputs.push_back(value);
    if (option == "--expect") arguments.expected.push_back(value);
    if (option == "--elements") arguments.elements = elements_of(split(value, ','));
    if (option == "--policy") arguments.policy = value;
    if (option == "--kernels") arguments.kernels = value;
    if (option == "--costs") arguments.costs = value;
    if (option == "--profile") arguments.profile = value;
    if (option == "--graph") arguments.graph = value;
    if (option == "--measure") arguments.measure = value;
    if (option == "--trace") arguments.trace = value;
    if (option == "--repeat") arguments.repeat = static_cast<long>(number_of(option, value, 1, 1e9));
    if (option == "--places") arguments.places = static_cast<long>(number_of(option, value, 1, 4096));
    if (option == "--deadline-ms") arguments.deadline_us = number_of(option, value, 0, 1e9) * 1000;
  }
  return arguments;
}

}  // namespace nnstretch
