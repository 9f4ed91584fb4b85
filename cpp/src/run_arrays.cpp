#include "run_arrays.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "nnstretch/error.hpp"
#include "npy.hpp"
#include "run_ports.hpp"

namespace nnstretch {
namespace {

std::vector<float> drawn(const Port& port, std::mt19937& generator) {
  std::vector<float> numbers(static_cast<std::size_t>(port.elements), 0.0F);
  if (port.numbers == Numbers::whole) return numbers;  // 0 is a row of any table.
  std::normal_distribution<float> normal(0.0F, 1.0F);
  for (float& number : numbers) number = normal(generator);
  return numbers;
}

void refuse_non_finite(const std::string& path, const std::vector<float>& numbers) {
  const auto wrong = std::count_if(numbers.begin(), numbers.end(),
                                   [](float number) { return !std::isfinite(number); });
  if (wrong > 0)
    refuse(path + ", " + std::to_string(wrong) + " of " + std::to_string(numbers.size()) +
           " numbers are NaN or infinite");
}

// Whether two numbers are equal, or both none.
bool is_same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// How far an output is from a file, over the largest finite magnitude in it, or 1 where that is
// larger: the rule of the export.
double difference(const std::vector<float>& output, const std::vector<float>& expected) {
  double apart = 0.0, largest = 1.0;
  for (std::size_t i = 0; i < output.size(); ++i) {
    if (std::isfinite(expected[i]))
      largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    if (is_same(output[i], expected[i])) continue;
    const double error = std::abs(static_cast<double>(output[i]) - expected[i]);
    if (!std::isfinite(error)) return kNever;
    apart = std::max(apart, error);
  }
  return apart / largest;
}

}  // namespace

Arrays load_inputs(const Network& network, const RunArguments& arguments) {
  const std::vector<Port>& ports = network.inputs();
  const std::vector<std::string> paths = paths_by_port(arguments.inputs, ports, "--input");
  std::mt19937 generator(0);
  Arrays inputs;
  for (std::size_t i = 0; i < ports.size(); ++i) {
    if (arguments.inputs.empty()) {
      inputs.push_back(drawn(ports[i], generator));
      continue;
    }
    if (paths[i].empty())
      refuse("--input, command line, there is no file for input " + ports[i].name +
             ", all inputs have one or none");
    inputs.push_back(read_npy(paths[i], ports[i].shape, ports[i].numbers == Numbers::whole));
    refuse_non_finite(paths[i], inputs.back());
  }
  return inputs;
}

Expected load_expected(const Network& network, const RunArguments& arguments) {
  const std::vector<Port>& ports = network.outputs();
  Expected expected{paths_by_port(arguments.expected, ports, "--expect"), {}};
  for (std::size_t i = 0; i < ports.size(); ++i) {
    const std::string& path = expected.paths[i];
    expected.arrays.push_back(path.empty() ? std::vector<float>() : read_npy(path, ports[i].shape));
  }
  return expected;
}

std::vector<std::string> compare_outputs(const Expected& expected, const Arrays& outputs) {
  constexpr double kMost = 1e-4;
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string& path = expected.paths[i];
    if (path.empty()) continue;
    const double apart = difference(outputs[i], expected.arrays[i]);
    char words[96];
    std::snprintf(words, sizeof words, "%.1e of the largest magnitude (or of 1)", apart);
    const std::string output = "output " + std::to_string(i) + " differs ";
    if (!(apart <= kMost)) refuse(path + ", " + output + "by " + words + ", at most 1e-4");
    lines.push_back(output + "from " + path + " by " + words);
  }
  return lines;
}

}  // namespace nnstretch
