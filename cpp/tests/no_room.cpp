// Without a network, or room for its places, opening is refused; what was allocated is free again.
#include <sys/resource.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "nnstretch/error.hpp"
#include "nnstretch/runtime.hpp"

int main() {
  using namespace nnstretch;
  constexpr std::int64_t kFloats = std::int64_t{1} << 22;  // 16 MiB a place.
  const auto network = std::make_shared<Network>("net", nullptr, kFloats);
  const View x = network->input("x", {1}), y = network->output("y", {1});
  network->begin_task("plus");
  network->call("plus", Scalar{}, {x}, y);
  network->finish();
  RuntimeOptions options;
  options.elements = {{"cpu0"}};
  Runtime runtime(options);
  try {
    runtime.open(nullptr, 1, {});
    std::puts("no network was opened");
    return 1;
  } catch (const Error&) {
  }
  const rlimit limit{std::size_t{200} << 20, std::size_t{200} << 20};
  if (setrlimit(RLIMIT_AS, &limit) != 0) return 2;
  const std::vector<CostRow> costs(network->tasks().size(), CostRow{1.0});
  for (const std::size_t places : {60, 6}) {
    try {
      runtime.open(network, places, costs);
      std::puts(places == 6 ? "ok" : "there was room for 60");
    } catch (const Error& error) {
      if (places == 6 || error.status() != Status::no_memory) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
      }
    }
  }
  return 0;
}
