// The scheduling loop on a clock that no one waits for: every task takes exactly its time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "nnstretch/schedule.hpp"
#include "workload.hpp"

namespace nnstretch {

struct VirtualSpan {
  std::size_t application = 0;
  std::uint64_t instance = 0;  // Of all applications, from 1.
  std::size_t task = 0;
  std::size_t element = 0;
  double start_us = 0.0;
  double end_us = 0.0;
};

// Events of one instant are heard in the order in which they were caused, then the policy is asked;
// so does nnstretch's Python package (schedule/simulation, schedule/executors/virtual.py).
class VirtualClock {
 public:
  explicit VirtualClock(const Workload& workload);
  // Let everything arrive and end. Throws Error where instances are left that nothing can end.
  void run();
  // In the order in which they ended.
  const std::vector<VirtualSpan>& spans() const { return spans_; }
  std::uint64_t decisions() const { return loop_->decisions(); }
  std::size_t refused() const { return refused_; }
  std::size_t dropped() const { return dropped_; }

 private:
  // Room for one instance of an application; reused when all of it has ended.
  struct Room {
    std::size_t application = 0;
    std::size_t first_job = 0;
    std::uint64_t instance = 0;
    std::uint64_t first_order = 0;
    double deadline_us = kNever;
    bool open = false;
    std::size_t remaining = 0;  // Tasks that have not ended.
    std::size_t computing = 0;  // Tasks that elements have been handed.
    std::vector<std::size_t> unmet;
  };
  struct Event {
    double at_us = 0.0;
    std::uint64_t number = 0;
    bool arrival = false;
    std::size_t index = 0;  // Application that arrives, or element whose job ends.
    double start_us = 0.0;
    Job job;
    bool operator<(const Event& other) const {
      return at_us != other.at_us ? at_us > other.at_us : number > other.number;
    }
  };

  void push(Event event);
  void next_arrival(std::size_t application);
  void arrive(std::size_t application);
  void dispatch();
  void hand_over(std::size_t element);
  void end(const Event& event);
  void close(Room& room);
  void leave(Room& room);
  Job job_of(const Room& room, std::size_t task) const;

  const Workload& workload_;
  Costs costs_;
  std::unique_ptr<Loop> loop_;
  double now_us_ = 0.0;
  std::vector<Event> ahead_;  // A heap.
  std::uint64_t pushed_ = 0;
  std::vector<std::size_t> freed_;  // Elements of which a job ended since the last dispatch.
  std::vector<double> free_us_;
  std::vector<Room> rooms_;
  std::vector<std::size_t> room_of_;                  // By job.
  std::vector<std::vector<std::size_t>> free_rooms_;  // By application, the next at the end.
  std::vector<std::size_t> arrived_;
  std::vector<std::size_t> open_;
  std::uint64_t instances_ = 0;
  std::uint64_t added_ = 0;
  std::size_t open_count_ = 0;
  std::size_t refused_ = 0;
  std::size_t dropped_ = 0;
  std::vector<VirtualSpan> spans_;
};

}  // namespace nnstretch
