// Which file of the command line belongs to which input or output of a network.
#pragma once

#include <string>
#include <vector>

#include "nnstretch/network.hpp"

namespace nnstretch {

// A path for each port, empty where there is none. NAME=PATH is for the port of that name; others
// are for ports without a name on the command line, in order. Throws Error for more files than
// ports, a name that no port has, and two files of one port; `what` is the option.
std::vector<std::string> paths_by_port(const std::vector<std::string>& files,
                                       const std::vector<Port>& ports, const std::string& what);

}  // namespace nnstretch
