#include "run_graph.hpp"

#include <algorithm>
#include <fstream>

#include "decimal.hpp"
#include "json.hpp"
#include "nnstretch/error.hpp"
#include "whole_file.hpp"

namespace nnstretch {

std::vector<std::string> task_names(const Network& network) {
  const std::vector<Task>& tasks = network.tasks();
  std::vector<std::string> names;
  for (const Task& task : tasks) {
    const bool twice = std::count_if(tasks.begin(), tasks.end(), [&](const Task& other) {
                         return other.name == task.name;
                       }) > 1;
    names.push_back(quoted(twice ? task.name + "#" + std::to_string(names.size()) : task.name));
  }
  return names;
}

void write_graph(const std::string& path, const Network& network,
                 const std::vector<ElementOptions>& elements, const std::vector<CostRow>& rows) {
  const std::vector<Task>& tasks = network.tasks();
  const std::vector<std::string> names = task_names(network);
  WholeFile whole(path);
  std::ofstream& file = whole.stream();
  file << "{\"tasks\": [";
  for (std::size_t i = 0; i < names.size(); ++i) file << (i > 0 ? ", " : "") << names[i];
  file << "],\n \"processors\": {";
  for (std::size_t i = 0; i < elements.size(); ++i)
    file << (i > 0 ? ", " : "") << quoted(elements[i].name) << ": " << quoted(elements[i].type);
  file << "},\n \"cost\": {";
  for (std::size_t task = 0; task < rows.size(); ++task) {
    file << (task > 0 ? ",\n  " : "\n  ") << names[task] << ": {";
    const char* comma = "";
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (rows[task][i] == kNever) continue;
      file << comma << quoted(elements[i].name) << ": " << decimal(rows[task][i], 3);
      comma = ", ";
    }
    file << "}";
  }
  file << "},\n \"edges\": [";
  const char* comma = "\n  ";
  for (std::size_t task = 0; task < tasks.size(); ++task)
    for (const std::size_t need : tasks[task].needs) {
      file << comma << "{\"from\": " << names[need] << ", \"to\": " << names[task] << "}";
      comma = ",\n  ";
    }
  file << "]}\n";
  whole.finish();
}

}  // namespace nnstretch
