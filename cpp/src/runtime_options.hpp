// The configuration of a runtime as JSON.
#pragma once

#include "nnstretch/runtime.hpp"

namespace nnstretch {

// Read a configuration as nnstretch.h describes it; null is one core under EFT. Throws Error for
// what is no such JSON, with the closest name for a key that is not known.
RuntimeOptions parse_options(const char* config);

}  // namespace nnstretch
