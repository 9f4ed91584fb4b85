// The scheduling loop and its policies, on any clock: what waits, where it goes, when that is free.
//
// The rules are those of nnstretch's Python package (schedule/event_loop.py, schedule/policies), tie
// by tie, so that one workload gives one schedule in both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace nnstretch {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Microseconds by element; infinite where it cannot run.
using CostRow = std::vector<double>;

struct Job {
  std::size_t id = 0;    // Below the loop's capacity, unique among the jobs that are open.
  std::size_t kind = 0;  // Row of costs.
  double deadline_us = kNever;
  std::uint64_t request = 0;  // The inference it belongs to; older ones have lower numbers.
  std::uint64_t order = 0;    // Of jobs that may start at one instant the lowest is announced first.
  std::size_t priority = 0;   // Below the number of classes; the highest class goes first.
};

struct ElementState {
  std::size_t index = 0;
  std::string type;
  bool open = true;      // Whether it may be given work now.
  double free_us = 0.0;  // When it is expected to have done all that it was given.
  // By class of priority, what jobs take that were not handed over: those of a greater one go first.
  std::vector<double> reserved_us;
};

// When an element is expected to be free for jobs of a class: what is reserved of lesser ones waits.
inline double free_us_for(const ElementState& element, std::size_t priority) {
  double free_us = element.free_us;
  for (std::size_t lesser = 0; lesser < priority; ++lesser) free_us -= element.reserved_us[lesser];
  return free_us;
}

// Costs of every kind of job, corrected by what jobs really took.
class Costs {
 public:
  // Add the next kind. Throws Error for a cost that is negative or no number, and for a kind that
  // no element can run.
  void add(const std::string& name, CostRow row);
  const CostRow& row(std::size_t kind) const { return rows_[kind]; }
  // As it was added, without correction.
  double quiet_us(std::size_t kind, std::size_t element) const {
    return learnt_[kind][element].quiet_us;
  }
  // Which elements can run a kind: bit N for number N.
  std::uint64_t mask(std::size_t kind) const { return masks_[kind]; }
  std::size_t kinds() const { return rows_.size(); }
  // Learn from a job that has ended how far its prediction is off: the mean at first, then a moving
  // average in which the newest weighs a tenth. A prediction of no time says nothing.
  void observe(std::size_t kind, std::size_t element, double start_us, double end_us);

 private:
  struct Learnt {
    double quiet_us = 0.0;  // What was predicted.
    double ratio = 1.0;     // Measured over predicted.
    std::uint64_t count = 0;
  };
  std::vector<CostRow> rows_;
  std::vector<std::vector<Learnt>> learnt_;
  std::vector<std::uint64_t> masks_;
};

struct Choice {
  Job job;
  std::size_t element = 0;
  bool dropped = false;  // Given up: it cannot end in time.
};

// Chooses among jobs that may start; the loop asks until it declines.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual void add(const Job& job) = 0;
  virtual void withdraw(const Job& job) = 0;
  // The next job and an open element; false to wait for an event.
  virtual bool pick(double now_us, const std::vector<ElementState>& elements, Choice& choice) = 0;
};

// `capacity`: ids of jobs are below. Of several `classes` of priority the highest goes first, each
// with a policy of its own. Throws Error for a name that is not among policy_names(), with the
// closest.
std::unique_ptr<Policy> make_policy(const std::string& name, const Costs& costs,
                                    const std::vector<ElementState>& elements,
                                    std::size_t capacity, std::size_t classes);
const std::vector<std::string>& policy_names();
// The end of a refusal: the name that takes the fewest edits to get to, or all where none is near.
std::string suggestion(const std::string& name, const std::vector<std::string>& known);

class ElementQueue;
struct GivenJob;

// Jobs that wait, what each element has been given, and the policy between them. Nothing is
// allocated after it was made.
class Loop {
 public:
  // Told of a job that the policy gives up; it may withdraw others.
  using OnDrop = std::function<void(const Job&)>;

  // `capacity`: ids of jobs are below. Without `queueing` an element gets one at a time.
  Loop(const std::vector<std::string>& element_types, Costs& costs, const std::string& policy,
       bool queueing, std::size_t capacity, std::size_t classes, OnDrop on_drop);
  ~Loop();

  // Hear that a job may start.
  void add(const Job& job);
  // Forget a job; false where an element has been handed it and it is let run.
  bool withdraw(const Job& job, double now_us);
  // Hear that a job has ended.
  void end(const Job& job, std::size_t element, double at_us);
  // Ask the policy until it declines.
  void dispatch(double now_us);
  // Elements that the last dispatch gave jobs to, one entry a job.
  const std::vector<std::size_t>& chosen() const { return chosen_; }
  // Hand an element its next job; false where it has none or is busy.
  bool hand_over(std::size_t element, Job& job);
  // Whether an element that does nothing would be handed a job.
  bool has_next(std::size_t element) const;
  std::uint64_t decisions() const { return decisions_; }

 private:
  enum class Place : std::uint8_t { nowhere, fresh, waiting, given };
  void announce();

  std::vector<ElementState> states_;
  Costs& costs_;
  OnDrop on_drop_;
  std::unique_ptr<Policy> policy_;
  std::vector<GivenJob> given_;  // By id.
  std::vector<std::unique_ptr<ElementQueue>> queues_;
  std::vector<Job> fresh_;  // Of this instant: the policy has not heard of them.
  std::vector<Place> place_;
  std::vector<std::size_t> element_of_;
  std::vector<std::size_t> chosen_;
  std::size_t waiting_count_ = 0;
  std::uint64_t decisions_ = 0;
};

}  // namespace nnstretch
