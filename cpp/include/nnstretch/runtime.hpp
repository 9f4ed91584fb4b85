// The runtime: a thread for each processing element, any number of networks, one lock, no polling.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "nnstretch/error.hpp"
#include "nnstretch/network.hpp"
#include "nnstretch/nnstretch.h"
#include "nnstretch/schedule.hpp"

namespace nnstretch {

struct ElementOptions {
  std::string name;         // Unique: "cpu0".
  std::string type = "cpu";
  int core = -1;            // Core that its thread is pinned to; -1 leaves it to the system.
  bool emulated = false;    // Computes on the host and takes the time that its costs say.
  const nns_element* vendor = nullptr;  // Computes what it supports; null for the host.
  int unit = 0;                         // Of the vendor's.
};

struct RuntimeOptions {
  std::vector<ElementOptions> elements;
  std::string policy = "eft";     // For "planned", costs as keep_placements() leaves them.
  std::string kernels;            // "onednn" or "portable"; empty for the fastest of this build.
  bool queueing = true;           // Off: only idle elements get work.
  bool correct_costs = true;      // Learn from what tasks really take.
  std::size_t priorities = 1;     // Classes: of those that wait the highest goes first.
  std::size_t trace_spans = 0;    // Spans to keep; later ones are counted only.
};

struct TaskSpan {
  std::size_t network = 0;
  std::uint64_t inference = 0;  // Number since opening.
  std::size_t task = 0;
  std::size_t element = 0;
  double start_us = 0.0;
  double end_us = 0.0;
};

// Whether no vendor's element is among them, so that kernels may keep layouts of their own.
bool host_only(const std::vector<ElementOptions>& elements);

// An inference that was submitted.
struct Ticket {
  std::size_t place = 0;
  std::uint64_t number = 0;
};

struct SubmitOptions {
  double deadline_us = kNever;  // From now on.
  std::size_t priority = 0;     // Below RuntimeOptions::priorities.
};

class ReservedUnits;
class Session;
class VendorCalls;

class Runtime {
 public:
  // Throws Error for options that cannot be. Units of vendors are its own until it is destroyed.
  explicit Runtime(RuntimeOptions options);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Throws Error where open() would not take so many places, or nothing any more.
  void check_opening(std::size_t places) const;
  // Make `places` inferences of a network possible at once; all memory is allocated here. `costs`:
  // microseconds of every task on every element. Returns the network's number. Before start().
  std::size_t open(std::shared_ptr<const Network> network, std::size_t places,
                   std::vector<CostRow> costs);
  // Room for calls of hand-written code (session.hpp), `most_calls` at once. Before start(). `costs`:
  // path of a table, empty to measure a call when it is first seen.
  Session& open_session(const std::string& costs, std::size_t most_calls);
  // Throws Error: no_memory where the system has no threads for all elements, it is closed then;
  // closed after close().
  void start();

  // Begin an inference; inputs and outputs must stay until it has ended. Throws Error: queue_full where all places are taken, closed after close().
  Ticket submit(std::size_t network, const float* const* inputs, float* const* outputs,
                const SubmitOptions& options = {});
  // Wait until an inference has ended, and give its place back. `timeout_us` below 0 waits for ever;
  // false where it passed first. A ticket is waited for once. `failure` becomes why it failed.
  bool wait(const Ticket& ticket, Status& status, double timeout_us = -1.0,
            std::string* failure = nullptr);
  // End an inference as soon as what runs has ended; its status is `cancelled`. One that has ended
  // stays as it is. Throws Error for what no submit() returned.
  void cancel(const Ticket& ticket);
  // Cancel what is under way and end the threads. Called by the destructor.
  void close();

  double now_us() const;
  std::vector<TaskSpan> spans() const;
  // Tasks of networks that elements computed, whether their spans were kept or not.
  std::uint64_t tasks_run() const;
  const Network& network(std::size_t number) const;
  const RuntimeOptions& options() const { return options_; }
  std::uint64_t decisions() const;

 private:
  friend class Session;
  struct Place;
  struct Opened;
  struct Owner {
    Session* session = nullptr;
    std::size_t place = 0;
  };
  void reserve_scratch(std::size_t floats);
  void check_ticket(const Ticket& ticket) const;
  void work(std::size_t element);
  void run_task(std::unique_lock<std::mutex>& lock, std::size_t element, const Job& job);
  // Returns when it ended.
  double run_in_time(std::unique_lock<std::mutex>& lock, std::size_t element, const Job& job,
                     double start_us);
  // Compute without the lock; returns what went wrong, empty where nothing did. An emulated element
  // takes the time of its table, not the corrected one.
  template <typename Compute>
  std::string attempt(std::size_t element, std::size_t kind, double start_us,
                      const Compute& compute) const {
    std::string failure;
    try {
      compute();
    } catch (...) {
      failure = reason_of_failure(element);
    }
    if (options_.elements[element].emulated) emulate(element, kind, start_us);
    return failure;
  }
  std::string reason_of_failure(std::size_t element) const;
  void emulate(std::size_t element, std::size_t kind, double start_us) const;
  void compute_task(Place& place, std::size_t element, std::size_t task);
  void finish_task(Place& place, std::size_t element, const Job& job, double end_us);
  void dispatch();
  void drop(const Job& job);
  void stop_place(Place& place, Status status);
  void end_place(Place& place, double at_us);
  Place& place_of(const Job& job) { return *places_[owner_[job.id].place]; }
  Job job_of(const Place& place, std::size_t task) const;

  RuntimeOptions options_;
  std::unique_ptr<ReservedUnits> units_;  // Before what computes on them: given back behind it.
  double origin_us_;  // Times count from here, so that they keep their last digits.
  Costs costs_;
  std::unique_ptr<Loop> loop_;
  std::vector<Opened> networks_;
  std::vector<std::unique_ptr<Place>> places_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<Owner> owner_;  // Of each job.
  std::vector<std::thread> threads_;
  std::vector<std::unique_ptr<float, void (*)(float*)>> scratch_;  // By element.
  std::size_t scratch_floats_ = 0;
  std::vector<std::unique_ptr<std::condition_variable>> wake_;
  std::vector<TaskSpan> spans_;
  std::uint64_t submitted_ = 0;
  std::uint64_t submitted_tasks_ = 0;
  std::uint64_t tasks_run_ = 0;
  bool closing_ = false;
  mutable std::mutex mutex_;
};

}  // namespace nnstretch
