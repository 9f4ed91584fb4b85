#include <algorithm>
#include <cmath>

#include "element_queue.hpp"
#include "nnstretch/error.hpp"
#include "nnstretch/schedule.hpp"

namespace nnstretch {

void Costs::add(const std::string& name, CostRow row) {
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (std::isnan(row[i]) || row[i] < 0)
      throw Error(Status::bad_input, "cost of " + name + " is " + std::to_string(row[i]) +
                                         ", it is a number of microseconds, 0 or more");
    if (std::isfinite(row[i])) mask |= std::uint64_t{1} << i;
  }
  if (mask == 0)
    throw Error(Status::bad_input, name + " has a cost on none of the elements, costs");
  rows_.push_back(std::move(row));
  masks_.push_back(mask);
}

void Costs::observe(std::size_t kind, std::size_t element, double took_us) {
  double& cost_us = rows_[kind][element];
  cost_us += 0.1 * (took_us - cost_us);
}

ElementQueue::ElementQueue(ElementState& state, bool queueing, std::size_t capacity)
    : state_(state), queueing_(queueing), order_(capacity) {}

void ElementQueue::give(const Job& job, double cost_us, double now_us) {
  state_.free_us = std::max(now_us, state_.free_us) + cost_us;
  if (count_ == 0) head_due_us_ = state_.free_us;
  ++count_;
  state_.open = queueing_;
  order_.push({job, cost_us, state_.free_us - shift_us_, false, false});
}

ElementQueue::Given& ElementQueue::find(const Job& job) {
  std::size_t i = 0;
  while (order_[i].over || order_[i].job.id != job.id) ++i;
  return order_[i];
}

void ElementQueue::end(const Job& job, double at_us) {
  Given& given = find(job);
  busy_ = false;
  shift(at_us - (given.due_us + shift_us_));
  remove(given, at_us);
}

bool ElementQueue::take_back(const Job& job, double now_us) {
  Given& given = find(job);
  if (given.handed) return false;
  state_.free_us -= given.cost_us;
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

void ElementQueue::remove(Given& given, double at_us) {
  given.over = true;
  --count_;
  state_.open = queueing_ || count_ == 0;
  while (!order_.empty() && order_.front().over) order_.pop();
  if (!order_.empty()) {
    head_due_us_ = order_.front().due_us + shift_us_;
    return;
  }
  head_due_us_ = kNever;
  state_.free_us = at_us;
  shift_us_ = 0.0;
}

ElementQueue::Given* ElementQueue::next() {
  if (busy_) return nullptr;
  for (std::size_t i = 0; i < order_.size(); ++i)
    if (!order_[i].over && !order_[i].handed) return &order_[i];
  return nullptr;
}

bool ElementQueue::has_next() { return next() != nullptr; }

bool ElementQueue::hand_over(Job& job) {
  Given* given = next();
  if (!given) return false;
  given->handed = busy_ = true;
  job = given->job;
  return true;
}

Loop::Loop(const std::vector<std::string>& element_types, Costs& costs, const std::string& policy,
           bool queueing, std::size_t capacity)
    : costs_(costs), place_(capacity, Place::nowhere), element_of_(capacity, 0) {
  if (element_types.empty() || element_types.size() > 64)
    throw Error(Status::bad_input, "there are " + std::to_string(element_types.size()) +
                                       " elements, 1 to 64 are possible");
  states_.resize(element_types.size());
  for (std::size_t i = 0; i < states_.size(); ++i) {
    states_[i].index = i;
    states_[i].type = element_types[i];
    queues_.push_back(std::make_unique<ElementQueue>(states_[i], queueing, capacity));
  }
  policy_ = make_policy(policy, costs, states_, capacity);
  fresh_.reserve(capacity);
}

Loop::~Loop() = default;

void Loop::add(const Job& job) {
  place_[job.id] = Place::fresh;
  fresh_.push_back(job);
}

bool Loop::withdraw(const Job& job, double now_us) {
  switch (place_[job.id]) {
    case Place::nowhere: return true;
    case Place::fresh:
      fresh_.erase(std::find_if(fresh_.begin(), fresh_.end(),
                                [&](const Job& other) { return other.id == job.id; }));
      break;
    case Place::waiting:
      policy_->withdraw(job);
      --waiting_count_;
      break;
    case Place::given:
      if (!queues_[element_of_[job.id]]->take_back(job, now_us)) return false;
      break;
  }
  place_[job.id] = Place::nowhere;
  return true;
}

void Loop::end(const Job& job, std::size_t element, double at_us) {
  queues_[element]->end(job, at_us);
  place_[job.id] = Place::nowhere;
}

void Loop::dispatch(double now_us, std::vector<Job>& dropped) {
  for (const auto& queue : queues_) queue->be_late(now_us);
  for (const Job& job : fresh_) {
    policy_->add(job);
    place_[job.id] = Place::waiting;
    ++waiting_count_;
  }
  fresh_.clear();
  Choice choice;
  while (waiting_count_ > 0 && policy_->pick(now_us, states_, choice)) {
    --waiting_count_;
    ++decisions_;
    if (choice.dropped) {
      place_[choice.job.id] = Place::nowhere;
      dropped.push_back(choice.job);
      choice.dropped = false;
      continue;
    }
    place_[choice.job.id] = Place::given;
    element_of_[choice.job.id] = choice.element;
    queues_[choice.element]->give(choice.job, costs_.row(choice.job.kind)[choice.element], now_us);
  }
}

bool Loop::has_next(std::size_t element) const { return queues_[element]->has_next(); }

bool Loop::hand_over(std::size_t element, Job& job) { return queues_[element]->hand_over(job); }

}  // namespace nnstretch
