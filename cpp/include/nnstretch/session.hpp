// Calls of hand-written code on the elements of a runtime.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "nnstretch/costs.hpp"
#include "nnstretch/nnstretch.h"
#include "nnstretch/runtime.hpp"

namespace nnstretch {

// What a call reads and writes orders it after earlier calls; independent ones run at once.
class Session {
 public:
  // `measure`: a call without a cost is measured when it is first seen, else it is refused.
  Session(Runtime& runtime, CostTable costs, bool measure, std::size_t most_calls,
          std::size_t first_job);

  // Begin a call; returns its ticket. Throws Error: bad_input for sizes that do not fit, queue_full
  // where all places are taken.
  std::uint64_t enqueue(const nns_call& call);
  // Carry out a call, which waits for a place where all are taken; returns how it ended. `failure`,
  // here and below, becomes why a call failed.
  Status carry_out(const nns_call& call, std::string* failure = nullptr);
  // Below 0 without limit; false where it passed first. Of a call before the last 4096 whose place
  // was taken again the status is the first failure since the last finish.
  bool wait(std::uint64_t ticket, Status& status, double timeout_us,
            std::string* failure = nullptr);
  // Wait for all calls; the first failure since the last finish.
  Status finish(std::string* failure = nullptr);

 private:
  friend class Runtime;  // It has its lock.
  void run(std::unique_lock<std::mutex>& lock, std::size_t element, const Job& job);
  void close();

  // A call that waits for another one.
  struct Follower {
    std::uint32_t slot = 0;
    bool reads = false;  // What the other one wrote.
  };
  class Awaiting;
  // How a call ended, and why where it failed: what it reads may have failed before it.
  struct Outcome {
    Status status = Status::ok;
    std::string failure;
  };
  struct Slot {
    std::uint64_t number = 0;
    bool open = false;
    Awaiting* awaiting = nullptr;  // The threads that wait for it.
    Outcome outcome;
    nns_call call{};
    Operation operation;
    std::size_t kind = 0;
    std::size_t unmet = 0;
    std::vector<Follower> followers;
  };
  struct Ended {
    std::uint64_t number = 0;
    Outcome outcome;
  };
  // A thread that waits for the call of a place, on its stack: it is told how that one ended, for
  // the place is another call's before the thread wakes. With the runtime's lock.
  class Awaiting {
   public:
    explicit Awaiting(Slot& slot);
    ~Awaiting();
    Awaiting(const Awaiting&) = delete;
    Awaiting& operator=(const Awaiting&) = delete;
    bool ended() const { return !slot_; }
    const Outcome& outcome() const { return outcome_; }
    void end(const Outcome& outcome);  // Of the first that waits.

   private:
    Slot* slot_;  // Null when its call has ended.
    Outcome outcome_;
    Awaiting* next_ = nullptr;
  };
  // What costs depend on: its signature, and which elements support the call with all attributes
  // and strides, bit N for number N.
  using Kind = std::pair<std::string, std::uint64_t>;

  Slot& begin(std::unique_lock<std::mutex>& lock, const nns_call& call, bool wait_for_place);
  std::size_t kind_of(const Operation& operation, const nns_call& call);
  CostRow costs_of(const Operation& operation, const nns_call& call, const Kind& kind) const;
  static Status told(const Outcome& outcome, std::string* failure);
  Slot* free_slot();
  Job job_of(const Slot& slot) const;
  void order(Slot& slot);
  void complete(Slot& slot, const Outcome& outcome);
  void end(Slot& slot);
  void compute(std::size_t element, const Slot& slot) const;

  Runtime& runtime_;
  CostTable costs_;
  bool measure_;
  std::size_t first_job_;
  std::vector<Slot> slots_;
  std::vector<Ended> last_;  // By number.
  std::uint64_t calls_ = 0;
  Outcome failed_;  // Of the first that failed since the last finish.
  std::condition_variable ended_;
  std::mutex kinds_mutex_;
  std::map<Kind, std::size_t> kinds_;
};

}  // namespace nnstretch
