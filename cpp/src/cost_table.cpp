#include "cost_table.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>

#include "json.hpp"
#include "nnstretch/error.hpp"

namespace nnstretch {
namespace {

constexpr std::size_t kMostBytes = 64 << 20;

using Floats = std::unique_ptr<float, void (*)(float*)>;

Floats zeros(std::int64_t count) {
  Floats memory(allocate_floats(static_cast<std::size_t>(count)), free_floats);
  std::fill_n(memory.get(), count, 0.0F);
  return memory;
}

double seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace

CostTable read_costs(const std::string& path) {
  const Json file = Json::parse(read_text(path, kMostBytes), path);
  check_keys(file, {"format", "costs_us"}, path);
  const Json* format = file.find("format");
  const Json* costs = file.find("costs_us");
  if (!format || format->number != 1.0 || !costs || costs->kind != Json::Kind::object)
    throw Error(Status::bad_input, path + ", this is no table of costs of format 1");
  CostTable table;
  for (const auto& [call, types] : costs->members)
    for (const auto& [type, cost] : types.members) {
      if (cost.kind != Json::Kind::number || cost.number < 0)
        throw Error(Status::bad_input, path + ", cost of " + quoted(call) + " on " + quoted(type) +
                                           " is no number of microseconds, 0 or more");
      table[call][type] = cost.number;
    }
  return table;
}

void write_costs(const std::string& path, const CostTable& table) {
  const std::string aside = path + ".unfinished";
  std::ofstream file(aside, std::ios::trunc);
  file << "{\"format\": 1, \"costs_us\": {";
  const char* comma = "\n ";
  for (const auto& [call, types] : table) {
    file << comma << quoted(call) << ": {";
    comma = ",\n ";
    const char* inner = "";
    for (const auto& [type, cost_us] : types) {
      char number[32];
      std::snprintf(number, sizeof number, "%.3f", cost_us);
      file << inner << quoted(type) << ": " << number;
      inner = ", ";
    }
    file << "}";
  }
  file << "\n}}\n";
  file.close();
  if (!file || std::rename(aside.c_str(), path.c_str()) != 0)
    throw Error(Status::bad_input, path + ", cannot be written");
}

CostTable measure_costs(const Network& network, const std::string& type, int turns) {
  std::vector<Floats> memory;
  std::vector<const float*> inputs;
  std::vector<float*> outputs;
  for (const Port& port : network.inputs()) {
    memory.push_back(zeros(port.elements));
    inputs.push_back(memory.back().get());
  }
  for (const Port& port : network.outputs()) {
    memory.push_back(zeros(port.elements));
    outputs.push_back(memory.back().get());
  }
  const Floats arena = zeros(network.arena_floats());
  const Floats scratch = zeros(static_cast<std::int64_t>(scratch_floats()));
  const Memory places{inputs.data(), outputs.data(), arena.get()};
  std::vector<std::vector<double>> times(network.calls().size());
  for (int turn = -1; turn < turns; ++turn)
    for (std::size_t call = 0; call < times.size(); ++call) {
      const double start = seconds();
      compute(network, call, places, scratch.get());
      if (turn >= 0) times[call].push_back((seconds() - start) * 1e6);
    }
  CostTable table;
  for (std::size_t call = 0; call < times.size(); ++call) {
    std::vector<double>& sorted = times[call];
    std::sort(sorted.begin(), sorted.end());
    double& cost_us = table[signature(network.calls()[call])][type];
    const double median_us = sorted[sorted.size() / 2];
    cost_us = cost_us == 0.0 ? median_us : std::min(cost_us, median_us);
  }
  return table;
}

std::vector<CostRow> task_costs(const Network& network, const CostTable& table,
                                const std::vector<ElementOptions>& elements) {
  std::vector<CostRow> rows;
  for (const Task& task : network.tasks()) {
    CostRow row(elements.size(), 0.0);
    for (std::size_t call = task.first_call; call < task.end_call; ++call) {
      const std::string key = signature(network.calls()[call]);
      const auto entry = table.find(key);
      for (std::size_t i = 0; i < elements.size(); ++i) {
        const bool known = entry != table.end() && entry->second.count(elements[i].type) > 0;
        row[i] += known ? entry->second.at(elements[i].type) : kNever;
      }
      if (std::find_if(row.begin(), row.end(), [](double us) { return us < kNever; }) == row.end())
        throw Error(Status::bad_input, "no cost of " + quoted(key) + " (" + task.name +
                                           ") on any element, measure it with --profile");
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

void keep_placements(const Network& network, const std::vector<ElementOptions>& elements,
                     std::vector<CostRow>& rows) {
  for (std::size_t task = 0; task < rows.size(); ++task) {
    const Task& planned = network.tasks()[task];
    if (planned.placement.empty()) continue;
    bool placed = false;
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const bool here =
          planned.placement == elements[i].name || planned.placement == elements[i].type;
      placed = placed || (here && rows[task][i] < kNever);
      if (!here) rows[task][i] = kNever;
    }
    if (!placed)
      throw Error(Status::bad_input, planned.name + " is planned for " + quoted(planned.placement) +
                                         ", policy planned, no element of that name or type has a"
                                         " cost for it");
  }
}

}  // namespace nnstretch
