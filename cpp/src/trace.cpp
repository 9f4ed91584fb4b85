#include "trace.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "json.hpp"
#include "nnstretch/error.hpp"
#include "whole_file.hpp"

namespace nnstretch {

namespace {

void write_threads(std::ostream& file, const std::vector<ElementOptions>& elements) {
  for (std::size_t i = 0; i < elements.size(); ++i)
    file << (i > 0 ? ",\n" : "\n") << "{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": 1, "
         << "\"tid\": " << i + 1 << ", \"args\": {\"name\": " << quoted(elements[i].name) << "}}";
}

}  // namespace

void write_trace(const std::string& path, const Runtime& runtime) {
  WholeFile whole(path);
  std::ofstream& file = whole.stream();
  const std::vector<TaskSpan> spans = runtime.spans();
  const double origin_us = spans.empty() ? 0.0 : spans.front().start_us;
  const bool several = std::any_of(spans.begin(), spans.end(), [](const TaskSpan& span) {
    return span.network > 0;
  });
  file << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
  write_threads(file, runtime.options().elements);
  for (const TaskSpan& span : spans) {
    const Network& network = runtime.network(span.network);
    const std::string& task = network.tasks()[span.task].name;
    char times[96];
    std::snprintf(times, sizeof times, "\"ts\": %.3f, \"dur\": %.3f", span.start_us - origin_us,
                  span.end_us - span.start_us);
    file << ",\n{\"ph\": \"X\", \"name\": " << quoted(several ? network.name() + "/" + task : task)
         << ", " << times << ", \"pid\": 1, \"tid\": " << span.element + 1
         << ", \"args\": {\"request\": " << span.inference << "}}";
  }
  file << "\n]}\n";
  whole.finish();
}

}  // namespace nnstretch
