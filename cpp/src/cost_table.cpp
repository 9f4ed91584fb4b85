#include "nnstretch/costs.hpp"

#include <algorithm>
#include <fstream>

#include "c_call.hpp"
#include "decimal.hpp"
#include "json.hpp"
#include "nnstretch/error.hpp"
#include "regular_file.hpp"
#include "vendor.hpp"
#include "whole_file.hpp"

namespace nnstretch {
namespace {

constexpr std::size_t kMostBytes = 64 << 20;
constexpr double kMostUs = 1e18;

[[noreturn]] void refuse_idle(const ElementOptions& element, const Network& network) {
  if (element.emulated)
    refuse("element " + element.name + " has no costs, emulated elements take theirs from --costs:"
           " calls of " + network.name() + " there need a " + quoted(element.type));
  refuse("element " + element.name + " can run no task of " + network.name() +
         ", it supports none or has no costs");
}

}  // namespace

CostTable read_costs(const std::string& path) {
  const Json file = Json::parse(read_text(path, kMostBytes), path);
  check_keys(file, {"format", "costs_us"}, path);
  const Json* format = file.find("format");
  const Json* costs = file.find("costs_us");
  if (!format || format->number != 1.0 || !costs || costs->kind != Json::Kind::object)
    refuse(path + ", this is no table of costs of format 1");
  CostTable table;
  for (const auto& [call, types] : costs->members) {
    if (types.kind != Json::Kind::object)
      refuse(path + ", costs of " + quoted(call) + " are no object of element types");
    for (const auto& [type, cost] : types.members) {
      if (cost.kind != Json::Kind::number || cost.number < 0 || cost.number > kMostUs)
        refuse(path + ", cost of " + quoted(call) + " on " + quoted(type) +
               " is no number of microseconds from 0 to 1e18");
      table[call][type] = cost.number;
    }
  }
  return table;
}

void write_costs(const std::string& path, const CostTable& table) {
  WholeFile whole(path);
  std::ofstream& file = whole.stream();
  file << "{\"format\": 1, \"costs_us\": {";
  const char* comma = "\n ";
  for (const auto& [call, types] : table) {
    file << comma << quoted(call) << ": {";
    comma = ",\n ";
    const char* inner = "";
    for (const auto& [type, cost_us] : types) {
      file << inner << quoted(type) << ": " << decimal(cost_us, 3);
      inner = ", ";
    }
    file << "}";
  }
  file << "\n}}\n";
  whole.finish();
}

std::vector<CostRow> task_costs(const Network& network, const CostTable& table,
                                const std::vector<ElementOptions>& elements) {
  std::vector<CostRow> rows;
  std::vector<bool> used(elements.size(), false);
  for (const Task& task : network.tasks()) {
    CostRow row(elements.size(), 0.0);
    for (std::size_t call = task.first_call; call < task.end_call; ++call) {
      const std::string key = signature(network.calls()[call]);
      const nns_call offered = c_call(network, network.calls()[call]);
      const auto entry = table.find(key);
      for (std::size_t i = 0; i < elements.size(); ++i) {
        const bool known = entry != table.end() && entry->second.count(elements[i].type) > 0 &&
                           supports(elements[i], offered);
        row[i] += known ? entry->second.at(elements[i].type) : kNever;
      }
      if (std::all_of(row.begin(), row.end(), [](double us) { return us == kNever; }))
        refuse("no cost of " + quoted(key) + " (" + task.name +
               ") on any element, measure it with --profile");
    }
    for (std::size_t i = 0; i < row.size(); ++i) used[i] = used[i] || row[i] < kNever;
    rows.push_back(std::move(row));
  }
  for (std::size_t i = 0; i < elements.size(); ++i)
    if (!used[i]) refuse_idle(elements[i], network);
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
      refuse(planned.name + " is planned for " + quoted(planned.placement) +
             ", policy planned, no element of that name or type has a"
             " cost for it");
  }
}

}  // namespace nnstretch
