// A network's tasks with their costs, as a file for `nnstretch simulate` and `schedule`.
#pragma once

#include <string>
#include <vector>

#include "nnstretch/network.hpp"
#include "nnstretch/runtime.hpp"

namespace nnstretch {

// Names of the tasks as JSON: their own, with a number where several bear it.
std::vector<std::string> task_names(const Network& network);
// The network as a task graph of nnstretch: one task each, costs by element in microseconds.
void write_graph(const std::string& path, const Network& network,
                 const std::vector<ElementOptions>& elements, const std::vector<CostRow>& rows);

}  // namespace nnstretch
