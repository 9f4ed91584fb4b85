#include <algorithm>
#include <utility>

#include "element_queue.hpp"
#include "nnstretch/error.hpp"
#include "nnstretch/schedule.hpp"

namespace nnstretch {

Loop::Loop(const std::vector<std::string>& element_types, Costs& costs, const std::string& policy,
           bool queueing, std::size_t capacity, std::size_t classes, OnDrop on_drop)
    : costs_(costs),
      on_drop_(std::move(on_drop)),
      given_(capacity),
      place_(capacity, Place::nowhere),
      element_of_(capacity, 0) {
  if (element_types.empty() || element_types.size() > 64)
    refuse("there are " + std::to_string(element_types.size()) +
           " elements, 1 to 64 are possible");
  states_.resize(element_types.size());
  for (std::size_t i = 0; i < states_.size(); ++i) {
    states_[i].index = i;
    states_[i].type = element_types[i];
    states_[i].reserved_us.resize(std::max<std::size_t>(classes, 1), 0.0);
    queues_.push_back(std::make_unique<ElementQueue>(states_[i], queueing, given_));
  }
  policy_ = make_policy(policy, costs, states_, capacity, classes);
  fresh_.reserve(capacity);
  chosen_.reserve(capacity);
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

// Jobs of one instant in the order in which their inferences were added, whoever was heard first.
void Loop::announce() {
  if (fresh_.size() > 1)
    std::sort(fresh_.begin(), fresh_.end(),
              [](const Job& a, const Job& b) { return a.order < b.order; });
  for (const Job& job : fresh_) {
    policy_->add(job);
    place_[job.id] = Place::waiting;
    ++waiting_count_;
  }
  fresh_.clear();
}

void Loop::dispatch(double now_us) {
  chosen_.clear();
  announce();
  if (waiting_count_ == 0) return;
  for (const auto& queue : queues_) queue->be_late(now_us);
  Choice choice;
  while (waiting_count_ > 0 && policy_->pick(now_us, states_, choice)) {
    --waiting_count_;
    ++decisions_;
    const Job& job = choice.job;
    if (choice.dropped) {
      place_[job.id] = Place::nowhere;
      choice.dropped = false;
      on_drop_(job);
      continue;
    }
    place_[job.id] = Place::given;
    element_of_[job.id] = choice.element;
    chosen_.push_back(choice.element);
    queues_[choice.element]->give(job, costs_.row(job.kind)[choice.element], now_us);
  }
}

bool Loop::has_next(std::size_t element) const { return queues_[element]->has_next(); }

bool Loop::hand_over(std::size_t element, Job& job) { return queues_[element]->hand_over(job); }

}  // namespace nnstretch
