// What ran when, as a file for ui.perfetto.dev and `nnstretch report`.
#pragma once

#include <string>

#include "nnstretch/runtime.hpp"

namespace nnstretch {

// Write the kept spans of a runtime. Where several networks ran, a task is named after its network,
// too. Throws Error where the file cannot be written; an older file then stays as it was.
void write_trace(const std::string& path, const Runtime& runtime);

}  // namespace nnstretch
