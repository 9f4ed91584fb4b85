// Policies: CEDR's RR (SIMPLE), MET, EFT, ETF and HEFT_RT, the classics MCT, OLB and Min-Min, least
// slack (Band), and tasks where a plan put them (NN-Stretch). Sources and tie rules stand in
// docs/scheduling.md of nnstretch.
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "nnstretch/error.hpp"
#include "nnstretch/schedule.hpp"
#include "policies.hpp"
#include "waiting.hpp"

namespace nnstretch {
namespace {

using Elements = std::vector<ElementState>;

// Where a job ends first: `last_wins` takes the last of equals, else the first.
std::size_t earliest_finish(const Costs& costs, const Job& job, double now_us,
                            const Elements& elements, bool last_wins) {
  const CostRow& row = costs.row(job.kind);
  double best_us = kNever;
  std::size_t best = 0;
  for (const ElementState& element : elements) {
    if (!element.open) continue;
    const double end_us = std::max(element.free_us, now_us) + row[element.index];
    if (end_us < best_us || (last_wins && end_us == best_us && std::isfinite(end_us))) {
      best_us = end_us;
      best = element.index;
    }
  }
  return best;
}

// Jobs in an order of their own, each where a rule says.
class InOrder : public Policy {
 public:
  using Key = std::function<double(const Job&)>;
  using Place = std::function<std::size_t(const Job&, double, const Elements&)>;

  InOrder(const Costs& costs, std::size_t capacity, Key key, Place place)
      : waiting_(costs, capacity), key_(std::move(key)), place_(std::move(place)) {}

  void add(const Job& job) override { waiting_.add(job, key_(job)); }
  void withdraw(const Job& job) override { waiting_.remove(job); }
  bool pick(double now_us, const Elements& elements, Choice& choice) override {
    const Numbered* head = waiting_.head(open_mask(elements));
    if (!head) return false;
    choice.job = head->job;
    waiting_.remove(choice.job);
    choice.element = place_(choice.job, now_us, elements);
    return true;
  }

 private:
  LeastKeyFirst waiting_;
  Key key_;
  Place place_;
};

double first_come(const Job&) { return 0.0; }

constexpr double kRounding = 1e-9;  // Share of a time that its number may be off.

bool is_late(double at_us, double due_us) { return at_us - due_us > kRounding * due_us; }

// Least slack, giving up what no element can end in time.
class LeastSlackDrop : public InOrder {
 public:
  LeastSlackDrop(const Costs& costs, std::size_t capacity, Key key, Place place)
      : InOrder(costs, capacity, std::move(key), std::move(place)), costs_(costs) {}

  bool pick(double now_us, const Elements& elements, Choice& choice) override {
    if (!InOrder::pick(now_us, elements, choice)) return false;
    const CostRow& row = costs_.row(choice.job.kind);
    choice.dropped = true;
    for (const ElementState& element : elements)
      if (!is_late(std::max(now_us, element.free_us) + row[element.index], choice.job.deadline_us))
        choice.dropped = false;
    return true;
  }

 private:
  const Costs& costs_;
};

// Tasks where their plan put them: costs are finite there alone. Accelerators are given work before
// the CPU, and of several inferences the oldest goes first. Of several elements of that name or type
// the one that ends it first has it.
class Planned : public Policy {
 public:
  Planned(const Costs& costs, std::size_t capacity) : costs_(costs), waiting_(costs, capacity) {}

  void add(const Job& job) override { waiting_.add(job, static_cast<double>(job.request)); }
  void withdraw(const Job& job) override { waiting_.remove(job); }
  bool pick(double now_us, const Elements& elements, Choice& choice) override {
    const Numbered* first = nullptr;
    bool first_is_cpu = false;
    for (const ElementState& element : elements) {
      const Numbered* head =
          element.open ? waiting_.head(std::uint64_t{1} << element.index) : nullptr;
      const bool is_cpu = element.type == "cpu";
      if (!head || (first && first_is_cpu < is_cpu)) continue;
      if (first && first_is_cpu == is_cpu && !later(*first, *head)) continue;
      first = head;
      first_is_cpu = is_cpu;
    }
    if (!first) return false;
    choice.job = first->job;
    waiting_.remove(choice.job);
    choice.element = earliest_finish(costs_, choice.job, now_us, elements, false);
    return true;
  }

 private:
  const Costs& costs_;
  LeastKeyFirst waiting_;
};

// A policy for every priority: one is asked only where all above it decline. What is reserved of
// lesser classes waits, and so each sees elements as free before that.
class PriorityClasses : public Policy {
 public:
  PriorityClasses(std::vector<std::unique_ptr<Policy>> classes, const Elements& elements)
      : classes_(std::move(classes)), seen_(elements) {}

  void add(const Job& job) override { classes_[job.priority]->add(job); }
  void withdraw(const Job& job) override { classes_[job.priority]->withdraw(job); }
  bool pick(double now_us, const Elements& elements, Choice& choice) override {
    for (const ElementState& element : elements) seen_[element.index].open = element.open;
    for (std::size_t i = classes_.size(); i-- > 0;) {
      for (const ElementState& element : elements)
        seen_[element.index].free_us = free_us_for(element, i);
      if (classes_[i]->pick(now_us, seen_, choice)) return true;
    }
    return false;
  }

 private:
  std::vector<std::unique_ptr<Policy>> classes_;
  Elements seen_;
};

// Mean cost over the types that can run a kind, each at its cheapest element.
double mean_over_types(const CostRow& row, const Elements& elements) {
  double sum = 0.0;
  int types = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    double cost_us = kNever;
    bool first = true;
    for (std::size_t j = 0; j < row.size(); ++j) {
      if (elements[j].type != elements[i].type) continue;
      if (j < i) first = false;
      cost_us = std::min(cost_us, row[j]);
    }
    if (first && std::isfinite(cost_us)) {
      sum += cost_us;
      ++types;
    }
  }
  return sum / types;
}

std::size_t first_available(const Costs& costs, const Job& job, double now_us,
                            const Elements& elements) {
  double best_us = kNever;
  std::size_t best = 0;
  for (const ElementState& element : elements) {
    const double available_us = std::max(now_us, element.free_us);
    if (can_run(costs, job, element) && available_us < best_us) {
      best_us = available_us;
      best = element.index;
    }
  }
  return best;
}

std::unique_ptr<Policy> make_one(const std::string& name, const Costs& costs,
                                 const Elements& elements, std::size_t capacity) {
  const auto finish = [&costs](bool last_wins) {
    return [&costs, last_wins](const Job& job, double now_us, const Elements& states) {
      return earliest_finish(costs, job, now_us, states, last_wins);
    };
  };
  const auto slack = [&costs](const Job& job) {
    const CostRow& row = costs.row(job.kind);
    return job.deadline_us - *std::min_element(row.begin(), row.end());
  };
  if (name == "planned") return std::make_unique<Planned>(costs, capacity);
  if (name == "rr") return round_robin(costs, capacity);
  if (name == "met") return cheapest_type(costs, elements, capacity);
  if (name == "etf" || name == "min_min") return earliest_pair(costs, capacity);
  if (name == "eft") return std::make_unique<InOrder>(costs, capacity, first_come, finish(true));
  if (name == "mct") return std::make_unique<InOrder>(costs, capacity, first_come, finish(false));
  if (name == "least_slack")
    return std::make_unique<InOrder>(costs, capacity, slack, finish(false));
  if (name == "least_slack_drop")
    return std::make_unique<LeastSlackDrop>(costs, capacity, slack, finish(false));
  if (name == "olb")
    return std::make_unique<InOrder>(
        costs, capacity, first_come,
        [&costs](const Job& job, double now_us, const Elements& states) {
          return first_available(costs, job, now_us, states);
        });
  if (name == "heft_rt")
    return std::make_unique<InOrder>(
        costs, capacity,
        [&costs, elements](const Job& job) {
          return -mean_over_types(costs.row(job.kind), elements);
        },
        finish(false));
  refuse("unknown policy " + name + suggestion(name, policy_names()));
}

}  // namespace

const std::vector<std::string>& policy_names() {
  static const std::vector<std::string> names{"rr",          "met",     "eft",
                                              "etf",         "heft_rt", "mct",
                                              "olb",         "min_min", "least_slack",
                                              "least_slack_drop", "planned"};
  return names;
}

std::unique_ptr<Policy> make_policy(const std::string& name, const Costs& costs,
                                    const Elements& elements, std::size_t capacity,
                                    std::size_t classes) {
  if (classes <= 1) return make_one(name, costs, elements, capacity);
  std::vector<std::unique_ptr<Policy>> policies;
  for (std::size_t i = 0; i < classes; ++i)
    policies.push_back(make_one(name, costs, elements, capacity));
  return std::make_unique<PriorityClasses>(std::move(policies), elements);
}

}  // namespace nnstretch
