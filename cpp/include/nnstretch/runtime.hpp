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
#include "nnstretch/schedule.hpp"

namespace nnstretch {

struct ElementOptions {
  std::string name;         // Unique: "cpu0".
  std::string type = "cpu";
  int core = -1;            // Core that its thread is pinned to; -1 leaves it to the system.
  bool emulated = false;    // Computes on the host and takes the time that its costs say.
};

struct RuntimeOptions {
  std::vector<ElementOptions> elements;
  std::string policy = "eft";
  bool queueing = true;           // Off: only idle elements get work.
  bool correct_costs = true;      // Learn from what tasks really take.
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

// An inference that was submitted.
struct Ticket {
  std::size_t place = 0;
  std::uint64_t number = 0;
};

class Runtime {
 public:
  // Throws Error for options that cannot be.
  explicit Runtime(RuntimeOptions options);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Make `places` inferences of a network possible at once; all memory is allocated here. `costs`:
  // microseconds of every task on every element. Returns the network's number. Before start().
  std::size_t open(std::shared_ptr<const Network> network, std::size_t places,
                   std::vector<CostRow> costs);
  void start();

  // Begin an inference; inputs and outputs must stay until it has ended. `deadline_us` counts from
  // now. Throws Error: queue_full where all places are taken, closed after close().
  Ticket submit(std::size_t network, const float* const* inputs, float* const* outputs,
                double deadline_us = kNever);
  // Wait until an inference has ended, and give its place back. `timeout_us` below 0 waits for ever;
  // false where it passed first. A ticket is waited for once.
  bool wait(const Ticket& ticket, Status& status, double timeout_us = -1.0);
  // End an inference as soon as what runs has ended; its status is `cancelled`.
  void cancel(const Ticket& ticket);
  // Cancel what is under way and end the threads. Called by the destructor.
  void close();

  double now_us() const;
  std::vector<TaskSpan> spans() const;
  const RuntimeOptions& options() const { return options_; }
  std::uint64_t decisions() const;
  // Why an inference failed, of the last that did.
  std::string failure() const;

 private:
  struct Place;
  struct Opened;
  void work(std::size_t element);
  void run_task(std::unique_lock<std::mutex>& lock, std::size_t element, const Job& job);
  void compute_task(Place& place, std::size_t element, std::size_t task);
  void finish_task(Place& place, std::size_t element, const Job& job, double end_us);
  void dispatch();
  void drop(const Job& job);
  void stop_place(Place& place, Status status);
  void end_place(Place& place, double at_us);
  Place& place_of(const Job& job) { return *places_[owner_[job.id]]; }
  Job job_of(const Place& place, std::size_t task) const;

  RuntimeOptions options_;
  double origin_us_;  // Times count from here, so that they keep their last digits.
  Costs costs_;
  std::unique_ptr<Loop> loop_;
  std::vector<Opened> networks_;
  std::vector<std::unique_ptr<Place>> places_;
  std::vector<std::size_t> owner_;  // Place of each job.
  std::vector<std::thread> threads_;
  std::vector<float*> scratch_;
  std::vector<std::unique_ptr<std::condition_variable>> wake_;
  std::vector<TaskSpan> spans_;
  std::string failure_;
  std::uint64_t submitted_ = 0;
  std::uint64_t submitted_tasks_ = 0;
  bool closing_ = false;
  mutable std::mutex mutex_;
};

}  // namespace nnstretch
