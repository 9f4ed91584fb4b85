// Where the system has no threads for all elements a runtime is closed: nothing waits for ever.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "nnstretch/error.hpp"
#include "nnstretch/runtime.hpp"

namespace {

using namespace nnstretch;

rlim_t address_space_bytes() {
  std::ifstream file("/proc/self/statm");
  rlim_t pages = 0;
  file >> pages;
  return pages * 4096;
}

bool is_closed(Runtime& runtime) {
  float x = 0.0F, y = 0.0F;
  const float* inputs[1] = {&x};
  float* outputs[1] = {&y};
  try {
    runtime.submit(0, inputs, outputs);
  } catch (const Error& error) {
    return error.status() == Status::closed;
  }
  return false;
}

}  // namespace

int main() {
  const auto network = std::make_shared<Network>("net", nullptr, 16);
  const View x = network->input("x", {1}), y = network->output("y", {1});
  network->begin_task("plus");
  network->call("plus", Scalar{}, {x}, y);
  network->finish();
  RuntimeOptions options;
  for (int i = 0; i < 64; ++i) {
    options.elements.emplace_back();
    options.elements.back().name = "cpu" + std::to_string(i);
  }
  Runtime runtime(options);
  runtime.open(network, 1, std::vector<CostRow>(network->tasks().size(), CostRow(64, 1.0)));
  // Room for the stacks of some threads.
  const rlim_t most = address_space_bytes() + (rlim_t{40} << 20);
  const rlimit limit{most, most};
  if (setrlimit(RLIMIT_AS, &limit) != 0) return 2;
  try {
    runtime.start();
    std::puts("there were threads for 64 elements");
    return 1;
  } catch (const Error& error) {
    if (error.status() != Status::no_memory) throw;
  }
  const bool closed = is_closed(runtime);
  std::puts(closed ? "ok" : "it takes inferences that nothing ends");
  std::fflush(stdout);
  std::_Exit(closed ? 0 : 1);  // Closing what is not closed might never end, either.
}
