// What tasks take on the elements, with their spread, as `nnstretch simulate --costs` reads it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nnstretch/network.hpp"
#include "nnstretch/runtime.hpp"

namespace nnstretch {

// Run a network by the runtime itself: one inference at a time on each element, then several on all
// of them; and write what every task took alone, how many times as long it took beside others, and
// what the runtime takes between tasks. `rows`: costs of the tasks. Throws Error where a task fails.
void write_task_times(const std::string& path, const std::shared_ptr<const Network>& network,
                      const RuntimeOptions& options, const std::vector<CostRow>& rows);

}  // namespace nnstretch
