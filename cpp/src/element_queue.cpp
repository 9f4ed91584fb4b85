#include "element_queue.hpp"

#include <algorithm>

namespace nnstretch {

void ElementQueue::give(const Job& job, double cost_us, double now_us) {
  state_.free_us = std::max(now_us, state_.free_us) + cost_us;
  if (head_ == kNobody) head_due_us_ = state_.free_us;
  state_.open = queueing_;
  given_[job.id] = {job, cost_us, state_.free_us - shift_us_, false, tail_, kNobody};
  (tail_ == kNobody ? head_ : given_[tail_].behind) = job.id;
  tail_ = job.id;
}

void ElementQueue::end(const Job& job, double at_us) {
  GivenJob& given = given_[job.id];
  busy_ = false;
  shift(at_us - (given.due_us + shift_us_));
  remove(given, at_us);
}

bool ElementQueue::take_back(const Job& job, double now_us) {
  GivenJob& given = given_[job.id];
  if (given.handed) return false;
  state_.free_us -= given.cost_us;
  // All behind it come that much earlier.
  for (auto behind = given.behind; behind != kNobody; behind = given_[behind].behind) {
    given_[behind].due_us -= given.cost_us;
  }
  remove(given, now_us);
  return true;
}

void ElementQueue::be_late(double now_us) {
  if (head_due_us_ >= now_us) return;
  shift(now_us - head_due_us_);
  head_due_us_ = now_us;
}

void ElementQueue::shift(double by_us) {
  if (by_us == 0.0) return;
  shift_us_ += by_us;
  state_.free_us += by_us;
}

void ElementQueue::remove(GivenJob& given, double at_us) {
  (given.before == kNobody ? head_ : given_[given.before].behind) = given.behind;
  (given.behind == kNobody ? tail_ : given_[given.behind].before) = given.before;
  state_.open = queueing_ || head_ == kNobody;
  if (head_ != kNobody) {
    head_due_us_ = given_[head_].due_us + shift_us_;
    return;
  }
  head_due_us_ = kNever;
  state_.free_us = at_us;
  shift_us_ = 0.0;
}

bool ElementQueue::hand_over(Job& job) {
  if (!has_next()) return false;
  GivenJob& given = given_[head_];
  given.handed = busy_ = true;
  job = given.job;
  return true;
}

}  // namespace nnstretch
