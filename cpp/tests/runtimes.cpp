// What a runtime takes of the program that makes it, and what it gives back.
#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "nnstretch/error.hpp"
#include "nnstretch/runtime.hpp"
#include "sanitized.hpp"

namespace {

using namespace nnstretch;

// It maps memory of its own, and says itself what leaks.
constexpr bool kSanitized = NNSTRETCH_SANITIZED != 0;

std::int32_t supports_all(const nns_call* call) {
  (void)call;
  return 1;
}

std::int32_t do_nothing(std::int32_t unit, void* prepared, const nns_call* call) {
  (void)unit;
  (void)prepared;
  (void)call;
  return 0;
}

const nns_element pair = {NNS_VERSION, "pair",     "npu",   2,      supports_all,
                          nullptr,     do_nothing, nullptr, nullptr};

RuntimeOptions with_units(const std::vector<int>& units) {
  RuntimeOptions options;
  for (const int unit : units) {
    options.elements.emplace_back();
    ElementOptions& element = options.elements.back();
    element.name = "npu" + std::to_string(options.elements.size());
    element.type = "npu";
    element.vendor = &pair;
    element.unit = unit;
  }
  return options;
}

[[noreturn]] void fail(const std::string& why) { throw std::runtime_error(why); }

void expect_refused(const RuntimeOptions& options, const std::string& words) {
  try {
    const Runtime runtime(options);
  } catch (const Error& error) {
    if (std::string(error.what()).find(words) != std::string::npos) return;
    fail("refused, but: " + std::string(error.what()));
  }
  fail("made, instead of: " + words);
}

// Options that throw behind all that a runtime takes.
void expect_no_room(RuntimeOptions options) {
  options.trace_spans = std::numeric_limits<std::size_t>::max();
  try {
    const Runtime runtime(options);
  } catch (const std::length_error&) {
    return;
  }
  fail("there was room for spans without end");
}

// One unit is one runtime's, and once.
void reserve_units() {
  expect_refused(with_units({0, 1, 0}), "unit 0 of pair is another element, too");
  expect_refused(with_units({0, 2}), "unit 2 of pair is none, it has 2 units");
  expect_refused(with_units({-1}), "unit -1 of pair is none");
  auto first = std::make_unique<Runtime>(with_units({0}));
  expect_refused(with_units({1, 0}), "unit 0 of pair is another runtime's");
  { const Runtime second(with_units({1})); }
  first.reset();
  expect_no_room(with_units({0, 1}));
  const Runtime both(with_units({0, 1}));
}

// Units that are not named are those that no other runtime has.
void find_free_units() {
  static const nns_element four = {NNS_VERSION, "four",     "npu",   4,      supports_all,
                                   nullptr,     do_nothing, nullptr, nullptr};
  const char* config = "{\"elements\": [\"linked:four\", \"cpu\", \"linked:four\"]}";
  const auto expect = [&](nns_runtime*& runtime, nns_status status) {
    if (nns_create(config, &runtime) != status)
      fail("units were not given as expected: " + std::string(nns_last_error()));
  };
  nns_runtime *first = nullptr, *second = nullptr, *third = nullptr;
  if (nns_link_element(&four) != NNS_OK) fail(nns_last_error());
  expect(first, NNS_OK);
  expect(second, NNS_OK);
  expect(third, NNS_BAD_INPUT);
  const std::string why = nns_last_error();
  if (why.find("unit 0 of four is another runtime's") == std::string::npos)
    fail("refused, but: " + why);
  nns_close(first);
  expect(third, NNS_OK);
  nns_close(second);
  nns_close(third);
}

// Nothing starts what was closed.
void start_closed() {
  RuntimeOptions options;
  options.elements = {{"cpu0"}};
  Runtime runtime(options);
  runtime.close();
  try {
    runtime.start();
  } catch (const Error& error) {
    if (error.status() == Status::closed) return;
    fail("refused, but: " + std::string(error.what()));
  }
  fail("it was started behind its end");
}

std::int32_t take_long(std::int32_t unit, void* prepared, const nns_call* call) {
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return do_nothing(unit, prepared, call);
}

// A task that is given up leaves no span, and is none that was run.
void give_up() {
  static const nns_element slow = {NNS_VERSION, "slow",    "npu",   1,      supports_all,
                                   nullptr,     take_long, nullptr, nullptr};
  const auto network = std::make_shared<Network>("net", nullptr, 16);
  const View x = network->input("x", {1}), y = network->output("y", {1});
  network->begin_task("copy");
  network->call("copy", Copy{}, {x}, y);
  network->finish();
  RuntimeOptions options = with_units({0});
  options.elements[0].vendor = &slow;
  options.trace_spans = 8;
  Runtime runtime(options);
  runtime.open(network, 2, {{1.0}});
  runtime.start();
  float from = 0.0F, to[2];
  const float* inputs[1] = {&from};
  float *first[1] = {&to[0]}, *second[1] = {&to[1]};
  const Ticket whole = runtime.submit(0, inputs, first);
  const Ticket late = runtime.submit(0, inputs, second, {10000.0, 0});
  Status status = Status::failed;
  runtime.wait(whole, status);
  if (status != Status::ok) fail("an inference without a deadline did not end well");
  runtime.wait(late, status);
  if (status != Status::too_late) fail("an inference ended before what it waited for");
  if (runtime.spans().size() != 1 || runtime.tasks_run() != 1)
    fail("of one task that was run there are " + std::to_string(runtime.spans().size()) +
         " spans, and " + std::to_string(runtime.tasks_run()) + " were run");
}

// Whoever waits for an inference that failed hears why that one did, in whatever order.
void tell_failures_apart() {
  const auto network = std::make_shared<Network>("net", nullptr, 16);
  const View id = network->input("id", {1}), table = network->input("table", {2, 1});
  const View y = network->output("y", {1, 1});
  network->begin_task("gather");
  network->call("gather", Gather{}, {id, table}, y);
  network->finish();
  RuntimeOptions options;
  options.elements = {{"cpu0"}};
  Runtime runtime(options);
  runtime.open(network, 3, {{1.0}});
  runtime.start();
  const float ids[3] = {77.0F, 1.0F, 88.0F}, rows[2] = {5.0F, 6.0F};
  float to[3] = {};
  Ticket tickets[3];
  for (int i = 0; i < 3; ++i) {
    const float* inputs[2] = {&ids[i], rows};
    float* outputs[1] = {&to[i]};
    tickets[i] = runtime.submit(0, inputs, outputs);
  }
  for (const int i : {2, 0, 1}) {
    Status status = Status::ok;
    std::string why = "nothing is said";
    runtime.wait(tickets[i], status, -1.0, &why);
    const bool good = i == 1;
    const std::string said = "gather: id " + std::to_string(static_cast<int>(ids[i])) + " is no row";
    if (good != (status == Status::ok) || (good ? !why.empty() : why.find(said) != 0))
      fail("of id " + std::to_string(ids[i]) + " is said: " + why);
  }
}

// A runtime that cannot be made keeps nothing of what it took.
void make_none() {
  constexpr rlim_t kRoomBytes = rlim_t{1} << 30;
  RuntimeOptions options;
  for (int i = 0; i < 64; ++i) {
    options.elements.emplace_back();
    options.elements.back().name = "cpu" + std::to_string(i);
  }
  if (!kSanitized) {
    std::ifstream file("/proc/self/statm");
    rlim_t pages = 0;
    file >> pages;
    const rlim_t most = pages * 4096 + kRoomBytes;
    const rlimit limit{most, most};
    if (setrlimit(RLIMIT_AS, &limit) != 0) fail("no limit of memory can be set");
  }
  // More than there is room for, were it kept.
  for (int turn = 0; turn < (kSanitized ? 2 : 40); ++turn) expect_no_room(options);
}

constexpr std::int64_t kRows = 256, kDepth = 256, kColumns = 512;

// A product of matrices that wants all working memory of an element.
std::shared_ptr<const Network> product() {
  auto network = std::make_shared<Network>("net", nullptr, 16);
  const View a = network->input("a", {kRows, kDepth}), b = network->input("b", {kDepth, kColumns});
  const View y = network->output("y", {kRows, kColumns});
  network->begin_task("product");
  network->call("product", Matmul{}, {a, b}, y);
  network->finish();
  return network;
}

// Pages that the system had to find while a runtime computed its first inference.
long pages_of_first(Runtime& runtime, const float* const* inputs, float* const* outputs) {
  runtime.open(product(), 1, {{1.0}});
  runtime.start();
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  Status status = Status::failed;
  runtime.wait(runtime.submit(0, inputs, outputs), status);
  getrusage(RUSAGE_SELF, &after);
  if (status != Status::ok) fail("the first inference did not end well");
  return after.ru_minflt - before.ru_minflt;
}

void find_pages() {
  constexpr long kMost = 60;  // Working memory is three times as many.
  const std::vector<float> a(kRows * kDepth, 1.0F), b(kDepth * kColumns, 1.0F);
  std::vector<float> y(kRows * kColumns, 1.0F);
  const float* inputs[2] = {a.data(), b.data()};
  float* outputs[1] = {y.data()};
  RuntimeOptions options;
  options.elements = {{"cpu0"}};
  options.kernels = "portable";
  Runtime warm(options), runtime(options);  // The first one finds the program's own pages.
  pages_of_first(warm, inputs, outputs);
  const long found = pages_of_first(runtime, inputs, outputs);
  if (!kSanitized && found > kMost) fail(std::to_string(found) + " pages had to be found");
}

}  // namespace

int main() {
  try {
    reserve_units();
    find_free_units();
    start_closed();
    give_up();
    tell_failures_apart();
    find_pages();
    make_none();
    std::puts("ok");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "runtimes: %s\n", error.what());
  }
  return 1;
}
