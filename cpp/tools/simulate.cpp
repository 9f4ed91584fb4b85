// A workload on the virtual clock: `simulate` of nnstretch without Python.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>

#include "nnstretch/error.hpp"
#include "virtual_clock.hpp"
#include "workload.hpp"

namespace {

using namespace nnstretch;

constexpr const char* kHelp = R"(simulate: a workload on the virtual clock

  simulate WORKLOAD.json [SPANS.txt]

Prints one JSON object with tasks, decisions and tasks per second. SPANS.txt receives a line for
every task in the order in which they ended: application, instance, task, element, start and end in
microseconds, as hexadecimal floating-point numbers.
)";

void write_spans(const std::string& path, const VirtualClock& clock) {
  std::ofstream file(path, std::ios::trunc);
  for (const VirtualSpan& span : clock.spans()) {
    char line[160];
    std::snprintf(line, sizeof line, "%zu %llu %zu %zu %a %a\n", span.application,
                  static_cast<unsigned long long>(span.instance), span.task, span.element,
                  span.start_us, span.end_us);
    file << line;
  }
  file.close();
  if (!file) throw Error(Status::bad_input, path + ", cannot be written");
}

void simulate(const std::string& path, const std::string& spans) {
  const Workload workload = read_workload(path);
  VirtualClock clock(workload);
  const auto begun = std::chrono::steady_clock::now();
  clock.run();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begun;
  if (!spans.empty()) write_spans(spans, clock);
  const auto tasks = static_cast<double>(clock.spans().size());
  std::printf("{\"policy\": \"%s\", \"tasks\": %.0f, \"decisions\": %llu, \"refused\": %zu, "
              "\"dropped\": %zu, \"seconds\": %.6f, \"tasks_per_s\": %.0f}\n",
              workload.policy.c_str(), tasks, static_cast<unsigned long long>(clock.decisions()),
              clock.refused(), clock.dropped(), seconds.count(), tasks / seconds.count());
}

}  // namespace

int main(int count, char** words) {
  if (count < 2 || count > 3 || std::string(words[1]) == "--help") {
    std::fputs(kHelp, count == 2 ? stdout : stderr);
    return count == 2 ? 0 : 2;
  }
  try {
    simulate(words[1], count == 3 ? words[2] : "");
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "simulate: %s\n", error.what());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "simulate: no memory\n");
  }
  return 1;
}
