// What tasks take on the elements, with their spread, as `nnstretch simulate --costs` reads it.
#pragma once

#include <string>
#include <vector>

#include "nnstretch/runtime.hpp"
#include "task_runs.hpp"

namespace nnstretch {

// Run networks by the runtime itself: one inference at a time on each element, then a few and then
// many on all of them; and write what every task took alone, how many times as long it took beside
// others and after a task that it does not need, and what the runtime takes between tasks. Throws
// Error where a task fails, or the file cannot be written.
void write_task_times(const std::string& path, const std::vector<MeasuredNetwork>& networks,
                      const RuntimeOptions& options);

}  // namespace nnstretch
