#include "run_arguments.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "decimal.hpp"
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
  --input FILE.npy   an input, in the order of the network's; without any, numbers are drawn
  --output FILE.npy  where to write an output of the last inference, in order
  --expect FILE.npy  what an output has to be, in order, to 1e-4 of its largest magnitude,
                     or of 1 where that is larger
                     of several inputs or outputs each may be named: --input NAME=FILE.npy
                     (a path with = in its name begins with ./)
  --elements LIST    processing elements: cpu, cpu:CORE, library:PATH of a vendor, linked:NAME of
                     one linked in, emulated:TYPE that takes the times of --costs; default cpu
  --policy NAME      )"
    "rr met eft etf heft_rt mct olb min_min least_slack least_slack_drop,\n"
    "                     or planned: tasks where the exported plan put them; default eft"
    R"(
  --kernels SET      onednn, where this program was built with it, or portable; default the first
  --no-queueing      only idle elements get work
  --repeat N         inferences (default 1)
  --places N         how many may be under way at once (default 1)
  --deadline-ms X    inferences that take longer are given up, and counted as too late
  --costs FILE       microseconds of every call by element type; without, calls are measured first
  --profile FILE     measure, all elements of the host at work, write that table, and end
  --graph FILE       write the tasks with their costs, for `nnstretch simulate` and `schedule`, and end
  --measure FILE     write what tasks take alone and beside others, with its spread, for
                     `nnstretch simulate --costs`, and end
  --trace FILE       spans of the tasks, for ui.perfetto.dev and `nnstretch report`
  --json             print the result as one JSON object

  One of --profile, --graph and --measure, with the options that change what it writes. Files are
  regular ones; one that is written is no other of the command line.
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

bool is_digits(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

long whole_of(const std::string& option, const std::string& text, long most) {
  const bool sound = is_digits(text) && text.size() < 16;
  const long value = sound ? std::stol(text) : 0;
  if (value < 1 || value > most)
    refuse(option + " is " + text + ", command line, it is a whole number from 1 to " +
           std::to_string(most));
  return value;
}

double decimal_of(const std::string& option, const std::string& text, long most) {
  const std::size_t point = text.find('.');
  const bool sound = is_digits(text.substr(0, point)) &&
                     (point == std::string::npos || is_digits(text.substr(point + 1)));
  const double value = sound ? DecimalReader().read(text) : -1.0;
  if (!(value >= 0 && value <= static_cast<double>(most)))
    refuse(option + " is " + text + ", command line, it is a decimal number from 0 to " +
           std::to_string(most));
  return value;
}

// What the program is to do; an option is for some of these.
enum Purpose : unsigned { kInfer = 1, kProfile = 2, kGraph = 4, kMeasure = 8 };
constexpr unsigned kTimed = kInfer | kGraph | kMeasure;
constexpr unsigned kAny = kTimed | kProfile;

enum class Form { flag, once, many };

struct Option {
  std::string name;
  Form form = Form::once;
  unsigned purposes = kAny;
  void (*set)(RunArguments& to, const std::string& value) = nullptr;
};

using To = RunArguments;
using Text = const std::string&;

const std::vector<Option>& options() {
  static const std::vector<Option> all{
      {"--weights", Form::once, kAny, [](To& to, Text value) { to.weights = value; }},
      {"--input", Form::many, kInfer, [](To& to, Text value) { to.inputs.push_back(value); }},
      {"--output", Form::many, kInfer, [](To& to, Text value) { to.outputs.push_back(value); }},
      {"--expect", Form::many, kInfer, [](To& to, Text value) { to.expected.push_back(value); }},
      {"--elements", Form::once, kAny,
       [](To& to, Text value) { to.elements = elements_of(split(value, ',')); }},
      {"--policy", Form::once, kTimed, [](To& to, Text value) { to.policy = value; }},
      {"--kernels", Form::once, kAny, [](To& to, Text value) { to.kernels = value; }},
      {"--no-queueing", Form::flag, kInfer | kMeasure, [](To& to, Text) { to.queueing = false; }},
      {"--repeat", Form::once, kInfer,
       [](To& to, Text value) { to.repeat = whole_of("--repeat", value, 10000000); }},
      {"--places", Form::once, kInfer,
       [](To& to, Text value) { to.places = whole_of("--places", value, 4096); }},
      {"--deadline-ms", Form::once, kInfer,
       [](To& to, Text value) {
         to.deadline_us = decimal_of("--deadline-ms", value, 1000000000) * 1000;
       }},
      {"--costs", Form::once, kTimed, [](To& to, Text value) { to.costs = value; }},
      {"--profile", Form::once, kProfile, [](To& to, Text value) { to.profile = value; }},
      {"--graph", Form::once, kGraph, [](To& to, Text value) { to.graph = value; }},
      {"--measure", Form::once, kMeasure, [](To& to, Text value) { to.measure = value; }},
      {"--trace", Form::once, kInfer, [](To& to, Text value) { to.trace = value; }},
      {"--json", Form::flag, kInfer, [](To& to, Text) { to.json = true; }},
      {"--help", Form::flag, kAny, [](To& to, Text) { to.help = true; }}};
  return all;
}

const Option& option_of(const std::string& name) {
  std::vector<std::string> names;
  for (const Option& option : options()) {
    if (option.name == name) return option;
    names.push_back(option.name);
  }
  refuse("unknown option " + name + ", command line" + suggestion(name, names));
}

// Throws Error for an option that changes nothing of what the others ask for.
void check_together(const std::vector<const Option*>& used) {
  const Option* purpose = nullptr;
  for (const Option* option : used)
    if (option->purposes == kProfile || option->purposes == kGraph || option->purposes == kMeasure) {
      if (purpose)
        refuse(purpose->name + " and " + option->name + ", command line, they are two runs");
      purpose = option;
    }
  if (!purpose) return;
  for (const Option* option : used)
    if ((option->purposes & purpose->purposes) == 0)
      refuse(option->name + ", command line, it is of no use with " + purpose->name);
}

}  // namespace

std::string run_help() { return kHelp; }

RunArguments run_arguments(int count, char** words) {
  RunArguments arguments;
  arguments.elements = elements_of({"cpu"});
  std::vector<const Option*> used;
  for (int i = 1; i < count; ++i) {
    const Option& option = option_of(words[i]);
    if (option.form != Form::many && std::find(used.begin(), used.end(), &option) != used.end())
      refuse(option.name + " is there twice, command line");
    used.push_back(&option);
    std::string value;
    if (option.form != Form::flag) {
      value = i + 1 < count ? words[++i] : "";
      if (value.empty() || value.rfind("--", 0) == 0)
        refuse(option.name + " has no value, command line");
    }
    option.set(arguments, value);
    if (arguments.help) return arguments;
  }
  check_together(used);
  return arguments;
}

}  // namespace nnstretch
