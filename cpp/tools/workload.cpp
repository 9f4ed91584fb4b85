#include "workload.hpp"

#include <algorithm>

#include "json.hpp"
#include "nnstretch/error.hpp"
#include "regular_file.hpp"

namespace nnstretch {
namespace {

constexpr std::size_t kMostBytes = std::size_t{256} << 20;

// A member of an object, with the words that say where it is.
class Field {
 public:
  Field(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(Status::bad_input, where_ + ", " + why);
  }
  Field member(const std::string& key) const {
    const Json* value = json_.find(key);
    if (!value) refuse("there is no " + quoted(key));
    return Field(*value, where_ + ", " + key);
  }
  bool has(const std::string& key) const {
    const Json* value = json_.find(key);
    return value && value->kind != Json::Kind::null;
  }
  std::vector<Field> items() const {
    if (json_.kind != Json::Kind::list) refuse("this is no list");
    std::vector<Field> fields;
    for (const Json& item : json_.items)
      fields.emplace_back(item, where_ + " " + std::to_string(fields.size()));
    return fields;
  }
  void only(const std::vector<std::string>& known) const { check_keys(json_, known, where_); }
  double number() const {
    if (json_.kind != Json::Kind::number) refuse("this is no number");
    return json_.number;
  }
  std::size_t index(std::size_t below) const {
    const double value = number();
    if (!(value >= 0 && value < static_cast<double>(below)) ||
        value != static_cast<double>(static_cast<std::size_t>(value)))
      refuse("it is a whole number from 0 to " + std::to_string(below - 1));
    return static_cast<std::size_t>(value);
  }
  const std::string& text() const {
    if (json_.kind != Json::Kind::text) refuse("this is no text");
    return json_.text;
  }
  bool boolean() const {
    if (json_.kind != Json::Kind::boolean) refuse("this is neither true nor false");
    return json_.boolean;
  }
  // Null stands for what cannot run.
  CostRow row(std::size_t elements) const {
    CostRow row;
    for (const Field& item : items()) {
      const bool absent = item.json_.kind == Json::Kind::null;
      row.push_back(absent ? kNever : item.number());
    }
    if (row.size() != elements)
      refuse(std::to_string(row.size()) + " numbers for " + std::to_string(elements) + " elements");
    return row;
  }

 private:
  const Json& json_;
  std::string where_;
};

void read_kinds(const Field& application, const std::string& name, Workload& workload) {
  const std::size_t elements = workload.element_types.size();
  for (const Field& kind : application.member("kinds").items()) {
    kind.only({"name", "costs_us", "times_us"});
    CostRow costs = kind.member("costs_us").row(elements);
    CostRow times = kind.member("times_us").row(elements);
    for (std::size_t i = 0; i < elements; ++i)
      if (!(times[i] >= 0) || (costs[i] == kNever) != (times[i] == kNever))
        kind.refuse("times are 0 or more, and there where costs are");
    workload.kind_names.push_back(name + "/" + kind.member("name").text());
    workload.costs_us.push_back(std::move(costs));
    workload.times_us.push_back(std::move(times));
  }
}

void read_tasks(const Field& application, std::size_t first_kind, const Workload& workload,
                WorkloadApplication& result) {
  const std::vector<Field> tasks = application.member("tasks").items();
  if (tasks.empty()) application.refuse("there are no tasks");
  result.tasks.resize(tasks.size());
  const std::size_t kinds = workload.costs_us.size() - first_kind;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    tasks[i].only({"kind", "needs"});
    result.tasks[i].kind = first_kind + tasks[i].member("kind").index(kinds);
    for (const Field& need : tasks[i].member("needs").items()) {
      result.tasks[need.index(tasks.size())].readers.push_back(i);
      ++result.tasks[i].needs;
    }
  }
}

}  // namespace

Workload read_workload(const std::string& path) {
  const Json file = Json::parse(read_text(path, kMostBytes), path);
  const Field root(file, path);
  root.only({"format", "policy", "queueing", "correction", "elements", "applications"});
  if (root.member("format").number() != 1.0) root.refuse("this is no workload of format 1");
  Workload workload;
  workload.policy = root.member("policy").text();
  workload.queueing = root.member("queueing").boolean();
  workload.correction = root.member("correction").boolean();
  for (const Field& type : root.member("elements").items())
    workload.element_types.push_back(type.text());
  std::vector<double> priorities;
  for (const Field& field : root.member("applications").items()) {
    field.only({"name", "priority", "deadline_us", "queue_limit", "arrivals_us", "kinds", "tasks"});
    WorkloadApplication application;
    application.name = field.member("name").text();
    if (field.has("deadline_us")) application.deadline_us = field.member("deadline_us").number();
    if (field.has("queue_limit"))
      application.queue_limit = field.member("queue_limit").index(std::size_t{1} << 32);
    for (const Field& at : field.member("arrivals_us").items())
      application.arrivals_us.push_back(at.number());
    priorities.push_back(field.member("priority").number());
    const std::size_t first_kind = workload.costs_us.size();
    read_kinds(field, application.name, workload);
    read_tasks(field, first_kind, workload, application);
    workload.applications.push_back(std::move(application));
  }
  std::vector<double> classes = priorities;
  std::sort(classes.begin(), classes.end());
  classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
  workload.classes = classes.size();
  for (std::size_t i = 0; i < priorities.size(); ++i)
    workload.applications[i].priority = static_cast<std::size_t>(
        std::find(classes.begin(), classes.end(), priorities[i]) - classes.begin());
  return workload;
}

}  // namespace nnstretch
