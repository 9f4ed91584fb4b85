// What ran when, as a file for ui.perfetto.dev and `nnstretch report`.
#pragma once

#include <cstddef>
#include <string>

#include "nnstretch/runtime.hpp"

namespace nnstretch {

// Write the kept spans of a runtime, as many of the first as `nnstretch report` reads of a file
// (64 MiB); return how many. Where several networks ran, a task is named after its network, too.
// Throws Error where the file cannot be written; an older file then stays as it was.
std::size_t write_trace(const std::string& path, const Runtime& runtime);

}  // namespace nnstretch
