// What one element has been given, the greatest priority first, equal ones in the order given, and
// when it is expected to be free.
#pragma once

#include <cstddef>
#include <vector>

#include "nnstretch/schedule.hpp"

namespace nnstretch {

constexpr std::size_t kNobody = static_cast<std::size_t>(-1);

// A job that an element has been given, linked to the one before and the one behind it by id.
struct GivenJob {
  Job job;
  double cost_us = 0.0;
  double due_us = 0.0;  // When it is expected to end, without the queue's shift.
  bool handed = false;
  std::size_t before = kNobody;
  std::size_t behind = kNobody;
};

// Every end shifts what is behind it by how much earlier or later it came than expected, so that
// errors of costs never add up.
class ElementQueue {
 public:
  // `given`: room for every job by id, which all queues of a loop share.
  ElementQueue(ElementState& state, bool queueing, std::vector<GivenJob>& given)
      : state_(state),
        queueing_(queueing),
        given_(given),
        reserved_(state.reserved_us.size(), 0) {}
  void give(const Job& job, double cost_us, double now_us);
  void end(const Job& job, double at_us);
  // False where the job has been handed over.
  bool take_back(const Job& job, double now_us);
  // Hear the time: where the first job should have ended, all behind it are late too.
  void be_late(double now_us);
  // The next job, false where there is none or the last one still runs.
  bool hand_over(Job& job);
  bool has_next() const { return !busy_ && head_ != kNobody; }

 private:
  void shift(double by_us);
  void expect_head();
  void leave_reserved(const GivenJob& given);
  void remove(GivenJob& given, double at_us);

  ElementState& state_;
  bool queueing_;
  std::vector<GivenJob>& given_;
  std::vector<std::size_t> reserved_;  // How many jobs were not handed over, by priority.
  std::size_t reserved_count_ = 0;
  bool overtaken_ = false;  // Whether a job went before reserved ones, whose `due_us` is not right.
  double heard_us_ = 0.0;   // When something was given or ended last.
  bool busy_ = false;
  std::size_t head_ = kNobody;
  std::size_t tail_ = kNobody;
  double head_due_us_ = kNever;
  double shift_us_ = 0.0;
};

}  // namespace nnstretch
