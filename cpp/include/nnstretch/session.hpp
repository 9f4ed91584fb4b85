// Calls of hand-written code on the elements of a runtime.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
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
  // where all places are taken and it may not `wait_for_place`.
  std::uint64_t enqueue(const nns_call& call, bool wait_for_place);
  // Below 0 without limit; false where it passed first.
  bool wait(std::uint64_t ticket, Status& status, double timeout_us);
  // Wait for all calls; the first failure since the last finish.
  Status finish();

 private:
  friend class Runtime;  // It has its lock.
  void run(std::unique_lock<std::mutex>& lock, std::size_t element, const Job& job);
  void close();

  struct Slot {
    std::uint64_t number = 0;
    bool open = false;
    Status status = Status::ok;
    nns_call call{};
    Operation operation;
    std::size_t kind = 0;
    std::size_t unmet = 0;
    std::vector<std::size_t> readers;
  };
  std::size_t kind_of(const Operation& operation, const nns_call& call);
  CostRow measured(const Operation& operation, const nns_call& call, const std::string& key) const;
  Slot* free_slot();
  Job job_of(const Slot& slot) const;
  void order(Slot& slot);
  void complete(Slot& slot, Status status);
  void compute(std::size_t element, const Slot& slot) const;

  Runtime& runtime_;
  CostTable costs_;
  bool measure_;
  std::size_t first_job_;
  std::vector<Slot> slots_;
  std::uint64_t calls_ = 0;
  Status failed_ = Status::ok;
  std::condition_variable ended_;
  std::mutex kinds_mutex_;
  std::map<std::string, std::size_t> kinds_;
};

}  // namespace nnstretch
