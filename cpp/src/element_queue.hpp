// What one element has been given, first in, first out, and when it is expected to be free.
#pragma once

#include "nnstretch/schedule.hpp"
#include "ring.hpp"

namespace nnstretch {

// Every end shifts what is behind it by how much earlier or later it came than expected, so that
// errors of costs never add up.
class ElementQueue {
 public:
  ElementQueue(ElementState& state, bool queueing, std::size_t capacity);
  void give(const Job& job, double cost_us, double now_us);
  void end(const Job& job, double at_us);
  // False where the job has been handed over.
  bool take_back(const Job& job, double now_us);
  // Hear the time: where the first job should have ended, all behind it are late too.
  void be_late(double now_us);
  // The next job, false where there is none or the last one still runs.
  bool hand_over(Job& job);
  bool has_next();

 private:
  struct Given {
    Job job;
    double cost_us = 0.0;
    double due_us = 0.0;  // When it is expected to end, without the queue's shift.
    bool handed = false;
    bool over = false;
  };
  Given& find(const Job& job);
  Given* next();
  void shift(double by_us);
  void remove(Given& given, double at_us);

  ElementState& state_;
  bool queueing_;
  bool busy_ = false;
  std::size_t count_ = 0;
  double head_due_us_ = kNever;
  double shift_us_ = 0.0;
  Ring<Given> order_;
};

}  // namespace nnstretch
