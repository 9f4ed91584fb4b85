// Files read and written where the program has chosen a locale with other decimal points: they hold
// the numbers that they hold anywhere.
//
//   locale NAME FOLDER      FOLDER: costs.json, in which "call" takes 12.345 us on "cpu"
#include <clocale>
#include <cstdio>
#include <locale>
#include <memory>
#include <stdexcept>
#include <string>

#include "nnstretch/costs.hpp"
#include "nnstretch/error.hpp"
#include "nnstretch/runtime.hpp"
#include "run_graph.hpp"
#include "stress_subjects.hpp"
#include "task_times.hpp"
#include "trace.hpp"

namespace {

using namespace nnstretch;

constexpr int kNoLocale = 77;

void write_files(const std::string& folder) {
  const CostTable table = read_costs(folder + "/costs.json");
  if (table.at("call").at("cpu") != 12.345)
    refuse("12.345 was read as " + std::to_string(table.at("call").at("cpu")));
  write_costs(folder + "/written.json", table);
  const std::shared_ptr<const Network> network = make_branches("a", 3, 1);
  RuntimeOptions options;
  options.elements = {{"cpu0"}, {"cpu1"}};
  options.trace_spans = 4000;
  const std::vector<CostRow> rows(network->tasks().size(), {12.345, 1234.5});
  write_graph(folder + "/graph.json", *network, options.elements, rows);
  write_task_times(folder + "/times.json", {{network, rows}}, options);
  Runtime runtime(options);
  runtime.open(network, 1, rows);
  runtime.start();
  const std::vector<float> x(64, 1.0F);
  std::vector<float> y(64);
  const float* inputs[1] = {x.data()};
  float* outputs[1] = {y.data()};
  Status status = Status::ok;
  runtime.wait(runtime.submit(0, inputs, outputs), status);
  runtime.close();
  write_trace(folder + "/trace.json", runtime);
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) return 2;
  try {
    std::locale::global(std::locale(words[1]));
  } catch (const std::runtime_error&) {
    return kNoLocale;
  }
  if (*std::localeconv()->decimal_point != ',') return kNoLocale;
  try {
    write_files(words[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "locale: %s\n", error.what());
    return 1;
  }
  return 0;
}
