#include "runtime_options.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "json.hpp"
#include "nnstretch/costs.hpp"
#include "nnstretch/error.hpp"
#include "vendor.hpp"

namespace nnstretch {

namespace {

bool boolean(const Json& value, const char* key) {
  if (value.kind != Json::Kind::boolean)
    refuse(std::string("configuration, ") + key + ", it is true or false");
  return value.boolean;
}

std::string text_of(const Json& value, const char* key) {
  if (value.kind != Json::Kind::text || value.text.empty())
    refuse(std::string("configuration, ") + key + ", it is a name");
  return value.text;
}

std::size_t count_of(const Json& value, const char* key, int least, int most) {
  if (value.kind != Json::Kind::number || !(value.number >= least && value.number <= most) ||
      value.number != std::floor(value.number))
    refuse(std::string("configuration, ") + key + ", it is a whole number from " +
           std::to_string(least) + " to " + std::to_string(most));
  return static_cast<std::size_t>(value.number);
}

}  // namespace

RuntimeOptions parse_options(const char* config) {
  RuntimeOptions options;
  options.elements = elements_of({"cpu"});
  if (!config) return options;
  const Json json = Json::parse(config, "configuration");
  check_keys(json, {"elements", "policy", "queueing", "correct_costs", "priorities", "kernels", "trace_spans"},
             "configuration");
  if (const Json* value = json.find("elements")) {
    if (value->kind != Json::Kind::list) refuse("configuration, elements, they are a list");
    std::vector<std::string> texts;
    for (const Json& item : value->items) texts.push_back(text_of(item, "elements"));
    if (texts.empty()) refuse("configuration, elements, there are none");
    options.elements = elements_of(texts);
  }
  if (const Json* value = json.find("policy")) options.policy = text_of(*value, "policy");
  if (const Json* value = json.find("kernels")) options.kernels = text_of(*value, "kernels");
  if (const Json* value = json.find("queueing")) options.queueing = boolean(*value, "queueing");
  if (const Json* value = json.find("correct_costs"))
    options.correct_costs = boolean(*value, "correct_costs");
  if (const Json* value = json.find("priorities"))
    options.priorities = count_of(*value, "priorities", 1, 64);
  if (const Json* value = json.find("trace_spans"))
    options.trace_spans = count_of(*value, "trace_spans", 0, 10000000);
  return options;
}

}  // namespace nnstretch
