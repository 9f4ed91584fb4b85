// Many inferences from many threads over two networks, with deadlines, priorities and cancellations:
// each ends once, answers are right, memory stays as it was, nothing is allocated after opening.
//
//   stress [INFERENCES [POLICY]]             by default 1000 under every policy
//   stress INFERENCES POLICY|all vendors     beside elements that fail, and that lie
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bad_vendors.hpp"
#include "nnstretch/error.hpp"
#include "nnstretch/runtime.hpp"

namespace {

std::atomic<bool> counting{false};
std::atomic<long> allocations{0};

}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCounted = false;  // Sanitizers have an operator new of their own.
#else
constexpr bool kCounted = true;
__attribute__((noinline)) void* operator new(std::size_t size) {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (!memory) throw std::bad_alloc();
  return memory;
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
#endif

namespace {

using namespace nnstretch;

constexpr int kThreads = 8;
constexpr std::int64_t kSize = 64;

// y = sum over branches of relu(x + branch), each branch a chain of `length` additions of 1.
std::shared_ptr<const Network> make_branches(const std::string& name, int branches, int length) {
  auto network = std::make_shared<Network>(name, nullptr, kSize * (branches * 2 + 2));
  const View x = network->input("x", {kSize});
  const View y = network->output("y", {kSize});
  Scalar plus_one;
  plus_one.number = 1.0F;
  std::vector<View> ends;
  for (int branch = 0; branch < branches; ++branch) {
    View from = x;
    for (int step = 0; step <= branch + length; ++step) {
      network->begin_task(name + std::to_string(branch) + "." + std::to_string(step));
      const View to = Network::arena(kSize * (branch * 2 + step % 2), {kSize});
      network->call("plus", plus_one, {from}, to);
      from = to;
    }
    ends.push_back(from);
  }
  network->begin_task(name + ".sum");
  View sum = ends[0];
  for (int branch = 1; branch < branches; ++branch) {
    const bool last = branch + 1 == branches;
    const View to = last ? y : Network::arena(kSize * (branches * 2 + branch % 2), {kSize});
    network->call("sum", Binary{}, {sum, ends[static_cast<std::size_t>(branch)]}, to);
    sum = to;
  }
  network->finish();
  return network;
}

float expected(int branches, int length, float x) {
  float sum = 0.0F;
  for (int branch = 0; branch < branches; ++branch)
    sum += x + static_cast<float>(branch + length + 1);
  return sum;
}

// The last element cannot run every fourth task, vendors' none but additions.
std::vector<CostRow> costs(const Network& network, const std::vector<ElementOptions>& elements,
                           std::mt19937& generator) {
  std::uniform_real_distribution<double> draw(5.0, 40.0);
  std::vector<CostRow> rows;
  const std::size_t tasks = network.tasks().size();
  for (std::size_t task = 0; task < tasks; ++task) {
    rows.emplace_back();
    for (const ElementOptions& element : elements)
      rows.back().push_back(element.vendor && task + 1 == tasks ? kNever : draw(generator));
    if (task % 4 == 1) rows.back().back() = kNever;
  }
  return rows;
}

struct Ends {
  std::atomic<long> ok{0}, too_late{0}, cancelled{0}, failed{0}, other{0}, wrong{0};
  long total() const { return ok + too_late + cancelled + failed + other; }
};

struct Shape {
  int branches;
  int length;
};
constexpr Shape kShapes[2] = {{3, 1}, {4, 2}};

// One thread's inferences; the number of a thread is the priority's and the seed's.
void client(Runtime& runtime, int thread, long inferences, std::atomic<bool>& go, Ends& ends,
            std::atomic<int>& ready) {
  std::mt19937 generator(static_cast<unsigned>(thread));
  std::vector<float> x(kSize), y(kSize);
  const float* inputs[1] = {x.data()};
  float* outputs[1] = {y.data()};
  ++ready;
  while (!go) std::this_thread::yield();
  for (long i = 0; i < inferences; ++i) {
    const auto chance = [&](unsigned of) { return generator() % of == 0; };
    const std::size_t network = generator() % 2;
    x[0] = static_cast<float>(generator() % 100);
    SubmitOptions options;
    if (chance(3)) options.deadline_us = static_cast<double>(generator() % 2000);
    options.priority = static_cast<std::size_t>(thread % 2);
    const Ticket ticket = runtime.submit(network, inputs, outputs, options);
    if (chance(4)) {
      if (chance(2)) std::this_thread::yield();
      runtime.cancel(ticket);
    }
    Status status = Status::ok;
    while (!runtime.wait(ticket, status, chance(2) ? 50.0 : -1.0)) continue;
    if (status == Status::ok) {
      ++ends.ok;
      const Shape& shape = kShapes[network];
      if (y[0] != expected(shape.branches, shape.length, x[0])) ++ends.wrong;
    } else if (status == Status::too_late) {
      ++ends.too_late;
    } else if (status == Status::cancelled) {
      ++ends.cancelled;
    } else if (status == Status::failed) {
      ++ends.failed;
    } else {
      ++ends.other;
    }
  }
}

long resident_kib() {
  std::ifstream file("/proc/self/statm");
  long total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4;
}

std::vector<ElementOptions> elements(bool vendors) {
  ElementOptions first, second, emulated;
  first.name = "cpu0";
  second.name = "cpu1";
  emulated.name = emulated.type = "dsp";
  emulated.emulated = true;
  std::vector<ElementOptions> all = {first, second, emulated};
  if (!vendors) return all;
  for (const BadUnit& bad : bad_units()) {
    ElementOptions element;
    element.name = bad.element->type + std::to_string(bad.unit);
    element.type = bad.element->type;
    element.vendor = bad.element;
    element.unit = bad.unit;
    all.insert(all.begin() + 1, element);
  }
  return all;
}

// Closed with work in flight.
void close_early(Runtime& runtime) {
  std::vector<float> x(kSize), y(2 * kSize);
  for (std::size_t i = 0; i < 2; ++i) {
    const float* inputs[1] = {x.data()};
    float* outputs[1] = {y.data() + i * kSize};
    runtime.submit(i, inputs, outputs);
  }
  runtime.close();
}

bool run(const std::string& policy, long inferences, bool vendors) {
  RuntimeOptions options;
  options.elements = elements(vendors);
  options.policy = policy;
  options.priorities = 2;
  Runtime runtime(options);
  std::mt19937 generator(1);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto network = make_branches(i == 0 ? "a" : "b", kShapes[i].branches, kShapes[i].length);
    runtime.open(network, kThreads, costs(*network, options.elements, generator));
  }
  runtime.start();
  Ends ends;
  std::atomic<bool> go{false};
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back(client, std::ref(runtime), i, inferences / kThreads, std::ref(go),
                         std::ref(ends), std::ref(ready));
  while (ready < kThreads) std::this_thread::yield();
  const long before_kib = resident_kib();
  allocations = 0;
  counting = !vendors;  // What a failure says is text.
  go = true;
  for (std::thread& thread : threads) thread.join();
  counting = false;
  const long grown_kib = resident_kib() - before_kib;
  close_early(runtime);
  const std::string counted =
      kCounted && !vendors ? std::to_string(allocations.load()) : "uncounted";
  const std::string failed = vendors ? std::to_string(ends.failed.load()) + " failed, " : "";
  std::printf("%-17s %ld ended: %ld ok, %s%ld too late, %ld cancelled; %ld wrong, %s allocations, "
              "%ld KiB more\n",
              policy.c_str(), ends.total(), ends.ok.load(), failed.c_str(), ends.too_late.load(),
              ends.cancelled.load(), ends.wrong.load(), counted.c_str(), grown_kib);
  std::fflush(stdout);  // Whoever waits for the whole run sees that it goes on.
  // A plan that leaves a task where it cannot run fails all inferences of its network.
  const bool some_ok = ends.ok > 0 || (vendors && policy == "planned");
  return ends.total() == inferences / kThreads * kThreads && ends.other == 0 && ends.wrong == 0 &&
         allocations == 0 && some_ok && (ends.failed > 0) == vendors;
}

// A vendor that refuses to prepare a call is a refusal, and what it prepared before is released.
bool refused_at_opening() {
  RuntimeOptions options;
  options.elements = {{"npu", "npu", -1, false, refusing_element(), 0}};
  Runtime runtime(options);
  const auto network = make_branches("a", 3, 1);
  try {
    runtime.open(network, 1, std::vector<CostRow>(network->tasks().size(), {1.0}));
  } catch (const Error&) {
    return true;
  }
  return false;
}

}  // namespace

int main(int count, char** words) {
  const long inferences = count > 1 ? std::atol(words[1]) : 1000;
  const std::string chosen = count > 2 ? words[2] : "all";
  const bool vendors = count > 3 && std::string(words[3]) == "vendors";
  bool sound = true;
  try {
    for (const std::string& policy : policy_names())
      if (chosen == "all" || policy == chosen) sound = run(policy, inferences, vendors) && sound;
    if (vendors) sound = refused_at_opening() && sound;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stress: %s\n", error.what());
    return 1;
  }
  const std::string spoilt = spoilt_by_vendors();
  if (!spoilt.empty()) std::fprintf(stderr, "stress: %s\n", spoilt.c_str());
  return sound && spoilt.empty() ? 0 : 1;
}
