// The runner's arrays: inputs from files or drawn, and outputs beside what they have to be.
#pragma once

#include <string>
#include <vector>

#include "nnstretch/network.hpp"
#include "run_arguments.hpp"

namespace nnstretch {

using Arrays = std::vector<std::vector<float>>;

// Inputs of --input, or drawn where it is not there. Throws Error where some have a file and others
// do not.
Arrays load_inputs(const Network& network, const RunArguments& arguments);

// What outputs have to be, by output; empty where --expect says nothing.
struct Expected {
  std::vector<std::string> paths;
  Arrays arrays;
};
Expected load_expected(const Network& network, const RunArguments& arguments);

// A line for each output that was compared. Throws Error for one that is off.
std::vector<std::string> compare_outputs(const Expected& expected, const Arrays& outputs);

}  // namespace nnstretch
