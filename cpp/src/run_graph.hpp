// A network's tasks with their costs, as a file for `nnstretch simulate` and `schedule`.
#pragma once

#include <string>
#include <vector>

#include "nnstretch/network.hpp"
#include "nnstretch/runtime.hpp"

namespace nnstretch {

// The network as a task graph of nnstretch: one task each, costs by element in microseconds.
void write_graph(const std::string& path, const Network& network,
                 const std::vector<ElementOptions>& elements, const std::vector<CostRow>& rows);

}  // namespace nnstretch
