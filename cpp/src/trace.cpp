#include "trace.hpp"

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "decimal.hpp"
#include "json.hpp"
#include "nnstretch/error.hpp"
#include "whole_file.hpp"

namespace nnstretch {

namespace {

constexpr std::size_t kMostTraceBytes = std::size_t{64} << 20;  // Of what `nnstretch report` reads.

std::string threads(const std::vector<ElementOptions>& elements) {
  std::string text;
  for (std::size_t i = 0; i < elements.size(); ++i)
    text += (i > 0 ? ",\n" : "\n") +
            ("{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": 1, \"tid\": " + std::to_string(i + 1)) +
            ", \"args\": {\"name\": " + quoted(elements[i].name) + "}}";
  return text;
}

// What a network's tasks are named after where several ran: its name, with its number where another
// one bears it, too.
std::vector<std::string> prefixes(const Runtime& runtime, std::size_t networks) {
  std::vector<std::string> names;
  if (networks < 2) return {""};
  for (std::size_t i = 0; i < networks; ++i) names.push_back(runtime.network(i).name());
  const std::vector<std::string> plain = names;
  for (std::size_t i = 0; i < networks; ++i)
    names[i] += (std::count(plain.begin(), plain.end(), plain[i]) > 1 ? "#" + std::to_string(i) : "") + "/";
  return names;
}

// `task`: its name as JSON.
std::string slice(const TaskSpan& span, const std::string& task, double origin_us) {
  return ",\n{\"ph\": \"X\", \"name\": " + task + ", \"ts\": " +
         decimal(span.start_us - origin_us, 3) + ", \"dur\": " +
         decimal(span.end_us - span.start_us, 3) + ", \"pid\": 1, \"tid\": " +
         std::to_string(span.element + 1) + ", \"args\": {\"request\": " +
         std::to_string(span.inference) + "}}";
}

}  // namespace

std::size_t write_trace(const std::string& path, const Runtime& runtime) {
  WholeFile whole(path);
  const std::vector<TaskSpan> spans = runtime.spans();
  // Spans lie in the order of their ends.
  const auto starts_first = [](const TaskSpan& a, const TaskSpan& b) { return a.start_us < b.start_us; };
  const auto first = std::min_element(spans.begin(), spans.end(), starts_first);
  const double origin_us = first == spans.end() ? 0.0 : first->start_us;
  std::size_t networks = 1;
  for (const TaskSpan& span : spans) networks = std::max(networks, span.network + 1);
  const std::vector<std::string> names = prefixes(runtime, networks);
  const std::string end = "\n]}\n";
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [" + threads(runtime.options().elements);
  std::size_t kept = 0;
  for (const TaskSpan& span : spans) {
    const std::string& task = runtime.network(span.network).tasks()[span.task].name;
    const std::string line = slice(span, quoted(names[span.network] + task), origin_us);
    if (text.size() + line.size() + end.size() > kMostTraceBytes) break;
    text += line;
    ++kept;
  }
  whole.stream() << text << end;
  whole.finish();
  return kept;
}

}  // namespace nnstretch
