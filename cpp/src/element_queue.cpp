#include "element_queue.hpp"

#include <algorithm>

namespace nnstretch {

void ElementQueue::give(const Job& job, double cost_us, double now_us) {
  GivenJob& given = given_[job.id];
  given = {job, cost_us, 0.0, false, tail_, kNobody};
  while (given.before != kNobody && !given_[given.before].handed &&
         given_[given.before].job.priority < job.priority)
    given.before = given_[given.before].before;
  given.behind = given.before == kNobody ? head_ : given_[given.before].behind;
  double start_us = state_.free_us;
  double lesser_us = 0.0;
  if (given.behind != kNobody) {
    overtaken_ = true;
    start_us = free_us_for(state_, job.priority);
    lesser_us = state_.free_us - start_us;
  }
  const double end_us = std::max(now_us, start_us) + cost_us;
  state_.free_us = end_us + lesser_us;
  given.due_us = end_us - shift_us_;
  heard_us_ = now_us;
  state_.open = queueing_;
  ++reserved_[job.priority];
  ++reserved_count_;
  state_.reserved_us[job.priority] += cost_us;
  const bool was_empty = head_ == kNobody;
  (given.before == kNobody ? head_ : given_[given.before].behind) = job.id;
  (given.behind == kNobody ? tail_ : given_[given.behind].before) = job.id;
  if (was_empty)
    head_due_us_ = end_us;
  else if (head_ == job.id)
    expect_head();
}

void ElementQueue::end(const Job& job, double at_us) {
  GivenJob& given = given_[job.id];
  busy_ = false;
  heard_us_ = at_us;
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
  leave_reserved(given);
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
    expect_head();
    return;
  }
  head_due_us_ = kNever;
  state_.free_us = at_us;
  shift_us_ = 0.0;
}

// Say when the first job is expected to end: anew where it is the next and others went before it.
void ElementQueue::expect_head() {
  GivenJob& head = given_[head_];
  if (overtaken_ && !head.handed) head.due_us = heard_us_ + head.cost_us - shift_us_;
  head_due_us_ = head.due_us + shift_us_;
}

// Count a job no longer among those that were not handed over.
void ElementQueue::leave_reserved(const GivenJob& given) {
  double& reserved_us = state_.reserved_us[given.job.priority];
  reserved_us -= given.cost_us;
  if (--reserved_[given.job.priority] == 0) reserved_us = 0.0;
  if (--reserved_count_ == 0) overtaken_ = false;
}

bool ElementQueue::hand_over(Job& job) {
  if (!has_next()) return false;
  GivenJob& given = given_[head_];
  leave_reserved(given);
  given.handed = busy_ = true;
  job = given.job;
  return true;
}

}  // namespace nnstretch
