// Many inferences from many threads over two networks, with deadlines, priorities and cancellations:
// each ends once, answers are right, memory stays as it was, nothing is allocated after opening.
//
//   stress [INFERENCES [POLICY]]             by default 1000 under every policy
//   stress INFERENCES POLICY|all vendors     beside elements that fail, and that lie
//   stress INFERENCES POLICY|all KERNELS WEIGHTS1 WEIGHTS2
//       of exported networks, built with -DFIRST=nns_model_A -DSECOND=nns_model_B
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bad_vendors.hpp"
#include "nnstretch/error.hpp"
#include "nnstretch/runtime.hpp"
#include "sanitized.hpp"
#include "stress_subjects.hpp"

namespace {

std::atomic<bool> counting{false};
std::atomic<long> allocations{0};

}  // namespace

#if NNSTRETCH_SANITIZED
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

#ifdef FIRST
extern "C" const nns_model* FIRST(void);
extern "C" const nns_model* SECOND(void);
#endif

namespace {

using namespace nnstretch;

constexpr int kThreads = 8;

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

// One thread's inferences; the number of a thread is the priority's and the seed's.
void client(Runtime& runtime, const std::vector<Subject>& subjects, int thread, long inferences,
            std::atomic<bool>& go, Ends& ends, std::atomic<int>& ready) {
  std::mt19937 generator(static_cast<unsigned>(thread));
  std::vector<std::vector<float>> results;
  for (const Subject& subject : subjects) results.emplace_back(subject.answers[0].size());
  ++ready;
  while (!go) std::this_thread::yield();
  for (long i = 0; i < inferences; ++i) {
    const auto chance = [&](unsigned of) { return generator() % of == 0; };
    const std::size_t network = generator() % 2;
    const Subject& subject = subjects[network];
    const std::size_t asked = generator() % subject.inputs.size();
    const float* inputs[1] = {subject.inputs[asked].data()};
    float* outputs[1] = {results[network].data()};
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
      if (results[network] != subject.answers[asked]) ++ends.wrong;
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
void close_early(Runtime& runtime, const std::vector<Subject>& subjects) {
  std::vector<std::vector<float>> results;
  for (const Subject& subject : subjects) results.emplace_back(subject.answers[0].size());
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    const float* inputs[1] = {subjects[i].inputs[0].data()};
    float* outputs[1] = {results[i].data()};
    runtime.submit(i, inputs, outputs);
  }
  runtime.close();
}

// What runs, and how much is asked of it.
struct Load {
  std::vector<Subject> subjects;
  long inferences;
  std::string kernels;
  bool vendors;
};

bool run(const Load& load, const std::string& policy) {
  const bool vendors = load.vendors;
  const long inferences = load.inferences;
  RuntimeOptions options;
  options.elements = elements(vendors);
  options.policy = policy;
  options.kernels = load.kernels;
  options.priorities = 2;
  Runtime runtime(options);
  std::mt19937 generator(1);
  for (const Subject& subject : load.subjects)
    runtime.open(subject.network, kThreads, costs(*subject.network, options.elements, generator));
  runtime.start();
  Ends ends;
  std::atomic<bool> go{false};
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back(client, std::ref(runtime), std::cref(load.subjects), i,
                         inferences / kThreads, std::ref(go), std::ref(ends), std::ref(ready));
  while (ready < kThreads) std::this_thread::yield();
  const long before_kib = resident_kib();
  allocations = 0;
  // What a failure says is text, and a library has handles of its own.
  const bool counted = kCounted && !vendors && load.kernels != "onednn";
  counting = counted;
  go = true;
  for (std::thread& thread : threads) thread.join();
  counting = false;
  const long grown_kib = resident_kib() - before_kib;
  close_early(runtime, load.subjects);
  const std::string allocated = counted ? std::to_string(allocations.load()) : "uncounted";
  const std::string failed = vendors ? std::to_string(ends.failed.load()) + " failed, " : "";
  std::printf("%-17s %ld ended: %ld ok, %s%ld too late, %ld cancelled; %ld wrong, %s allocations, "
              "%ld KiB more\n",
              policy.c_str(), ends.total(), ends.ok.load(), failed.c_str(), ends.too_late.load(),
              ends.cancelled.load(), ends.wrong.load(), allocated.c_str(), grown_kib);
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

Load load_of(int count, char** words) {
  Load load{{}, count > 1 ? std::atol(words[1]) : 1000, "", false};
  load.vendors = count == 4 && std::string(words[3]) == "vendors";
#ifdef FIRST
  if (count == 6) {
    load.kernels = words[3];
    load.subjects.push_back(exported(FIRST(), words[4], load.kernels));
    load.subjects.push_back(exported(SECOND(), words[5], load.kernels));
    return load;
  }
#endif
  if (count > 4 || (count == 4 && !load.vendors)) refuse("these words mean nothing here");
  load.subjects = sums();
  return load;
}

}  // namespace

int main(int count, char** words) {
  const std::string chosen = count > 2 ? words[2] : "all";
  bool sound = true;
  try {
    const Load load = load_of(count, words);
    for (const std::string& policy : policy_names())
      if (chosen == "all" || policy == chosen) sound = run(load, policy) && sound;
    if (load.vendors) sound = refused_at_opening() && sound;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stress: %s\n", error.what());
    return 1;
  }
  const std::string spoilt = spoilt_by_vendors();
  if (!spoilt.empty()) std::fprintf(stderr, "stress: %s\n", spoilt.c_str());
  return sound && spoilt.empty() ? 0 : 1;
}
