// The files that the runner will write, checked before anything is computed.
#pragma once

#include "nnstretch/network.hpp"
#include "run_arguments.hpp"

namespace nnstretch {

// Throws Error for a file that cannot be written, and for one that another option names, too.
void check_files(const RunArguments& arguments, const Network& network);

}  // namespace nnstretch
