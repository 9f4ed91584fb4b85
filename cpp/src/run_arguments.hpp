// What the runner of an exported network takes on its command line.
#pragma once

#include <string>
#include <vector>

#include "nnstretch/runtime.hpp"

namespace nnstretch {

struct RunArguments {
  std::string weights, costs, profile, graph, measure, trace, kernels, policy = "eft";
  std::vector<std::string> inputs, outputs, expected;
  std::vector<ElementOptions> elements;
  long repeat = 1;
  long places = 1;
  double deadline_us = kNever;
  bool queueing = true;
  bool json = false;
  bool help = false;
};

// Throws Error for what is unknown, no value of its option, there twice, or of no use beside the
// others.
RunArguments run_arguments(int count, char** words);
std::string run_help();

}  // namespace nnstretch
