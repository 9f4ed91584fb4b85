// Policies: CEDR's RR (SIMPLE), MET, EFT, ETF and HEFT_RT, the classics MCT, OLB and Min-Min, and
// least slack (Band). Sources and tie rules stand in docs/scheduling.md of nnstretch.
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "nnstretch/error.hpp"
#include "nnstretch/schedule.hpp"
#include "ring.hpp"

namespace nnstretch {
namespace {

using Elements = std::vector<ElementState>;

std::uint64_t open_mask(const Elements& elements) {
  std::uint64_t mask = 0;
  for (const ElementState& element : elements)
    if (element.open) mask |= std::uint64_t{1} << element.index;
  return mask;
}

bool can_run(const Costs& costs, const Job& job, const ElementState& element) {
  return element.open && (costs.mask(job.kind) >> element.index & 1) != 0;
}

// Numbers of waiting jobs, 0 for those that do not wait: what is in a queue and has another number
// has left it.
class Numbers {
 public:
  explicit Numbers(std::size_t capacity) : numbers_(capacity, 0) {}
  std::uint64_t enter(const Job& job) { return numbers_[job.id] = ++last_; }
  void leave(const Job& job) { numbers_[job.id] = 0; }
  bool waits(const Job& job, std::uint64_t number) const { return numbers_[job.id] == number; }

 private:
  std::vector<std::uint64_t> numbers_;
  std::uint64_t last_ = 0;
};

struct Numbered {
  double key = 0.0;
  std::uint64_t number = 0;
  Job job;
};

bool later(const Numbered& a, const Numbered& b) {
  return a.key != b.key ? a.key > b.key : a.number > b.number;
}

// Waiting jobs, the least key first, of equal keys the first; kept apart by the elements that can
// run them, so that nothing waits behind a job that cannot run now.
class LeastKeyFirst {
 public:
  LeastKeyFirst(const Costs& costs, std::size_t capacity)
      : costs_(costs), numbers_(capacity), capacity_(capacity) {}

  void add(const Job& job, double key) {
    std::vector<Numbered>& heap = group(costs_.mask(job.kind));
    if (heap.size() == heap.capacity()) drop_stale(heap);
    heap.push_back({key, numbers_.enter(job), job});
    std::push_heap(heap.begin(), heap.end(), later);
  }
  void remove(const Job& job) { numbers_.leave(job); }

  const Numbered* head(const Elements& elements) {
    const std::uint64_t mask = open_mask(elements);
    const Numbered* first = nullptr;
    for (auto& [can_run_mask, heap] : groups_) {
      if ((can_run_mask & mask) == 0) continue;
      while (!heap.empty() && !numbers_.waits(heap.front().job, heap.front().number)) {
        std::pop_heap(heap.begin(), heap.end(), later);
        heap.pop_back();
      }
      if (!heap.empty() && (!first || later(*first, heap.front()))) first = &heap.front();
    }
    return first;
  }

 private:
  std::vector<Numbered>& group(std::uint64_t mask) {
    for (auto& entry : groups_)
      if (entry.first == mask) return entry.second;
    groups_.emplace_back(mask, std::vector<Numbered>());
    groups_.back().second.reserve(capacity_ + 16);
    return groups_.back().second;
  }
  void drop_stale(std::vector<Numbered>& heap) {
    heap.erase(std::remove_if(heap.begin(), heap.end(),
                              [&](const Numbered& entry) {
                                return !numbers_.waits(entry.job, entry.number);
                              }),
               heap.end());
    std::make_heap(heap.begin(), heap.end(), later);
  }

  const Costs& costs_;
  Numbers numbers_;
  std::size_t capacity_;
  std::vector<std::pair<std::uint64_t, std::vector<Numbered>>> groups_;
};

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
    const Numbered* head = waiting_.head(elements);
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
      if (std::max(now_us, element.free_us) + row[element.index] <= choice.job.deadline_us)
        choice.dropped = false;
    return true;
  }

 private:
  const Costs& costs_;
};

// The cheapest type of element whatever its load, of equal ones the last; of that type in turn.
class CheapestType : public Policy {
 public:
  CheapestType(const Costs& costs, const Elements& elements, std::size_t capacity)
      : costs_(costs), numbers_(capacity), capacity_(capacity) {
    for (const ElementState& element : elements) {
      const auto known = std::find(types_.begin(), types_.end(), element.type);
      type_of_.push_back(static_cast<std::size_t>(known - types_.begin()));
      if (known == types_.end()) types_.push_back(element.type);
    }
    for (std::size_t i = 0; i < types_.size(); ++i)
      waiting_.emplace_back(costs, capacity_);
  }

  void add(const Job& job) override {
    waiting_[cheapest(job)].add(job, static_cast<double>(numbers_.enter(job)));
  }
  void withdraw(const Job& job) override {
    for (LeastKeyFirst& queue : waiting_) queue.remove(job);
  }
  bool pick(double, const Elements& elements, Choice& choice) override {
    const Numbered* first = nullptr;
    std::size_t type = 0;
    for (std::size_t i = 0; i < types_.size(); ++i) {
      const Numbered* head = waiting_[i].head(of_type(elements, i));
      if (head && (!first || head->key < first->key)) {
        first = head;
        type = i;
      }
    }
    if (!first) return false;
    choice.job = first->job;
    withdraw(choice.job);
    while (true) {
      const ElementState& element = elements[pointer_];
      pointer_ = (pointer_ + 1) % elements.size();
      if (type_of_[element.index] == type && can_run(costs_, choice.job, element)) {
        choice.element = element.index;
        return true;
      }
    }
  }

 private:
  std::size_t cheapest(const Job& job) const {
    const CostRow& row = costs_.row(job.kind);
    double best_us = kNever;
    std::size_t best = 0;
    for (std::size_t type = types_.size(); type-- > 0;) {
      double cost_us = kNever;
      for (std::size_t i = 0; i < row.size(); ++i)
        if (type_of_[i] == type) cost_us = std::min(cost_us, row[i]);
      if (cost_us < best_us) {
        best_us = cost_us;
        best = type;
      }
    }
    return best;
  }
  const Elements& of_type(const Elements& elements, std::size_t type) {
    filtered_ = elements;
    for (ElementState& element : filtered_)
      element.open = element.open && type_of_[element.index] == type;
    return filtered_;
  }

  const Costs& costs_;
  Numbers numbers_;
  std::size_t capacity_;
  std::vector<std::string> types_;
  std::vector<std::size_t> type_of_;
  std::vector<LeastKeyFirst> waiting_;
  Elements filtered_;
  std::size_t pointer_ = 0;
};

// Elements in turn: one pointer, which moves on with every try.
class RoundRobin : public Policy {
 public:
  RoundRobin(const Costs& costs, std::size_t capacity) : costs_(costs), waiting_(costs, capacity) {}

  void add(const Job& job) override { waiting_.add(job, 0.0); }
  void withdraw(const Job& job) override { waiting_.remove(job); }
  bool pick(double, const Elements& elements, Choice& choice) override {
    const Numbered* head = waiting_.head(elements);
    if (!head) return false;
    choice.job = head->job;
    waiting_.remove(choice.job);
    while (true) {
      const ElementState& element = elements[pointer_];
      pointer_ = (pointer_ + 1) % elements.size();
      if (can_run(costs_, choice.job, element)) {
        choice.element = element.index;
        return true;
      }
    }
  }

 private:
  const Costs& costs_;
  LeastKeyFirst waiting_;
  std::size_t pointer_ = 0;
};

// The pair of job and element that ends first of all pairs; of equals the first job, then the first
// element. Jobs of a kind cost the same, so only the first of each kind can win.
class EarliestPair : public Policy {
 public:
  EarliestPair(const Costs& costs, std::size_t capacity)
      : costs_(costs), numbers_(capacity), kinds_(costs.kinds()) {}

  void add(const Job& job) override {
    if (kinds_.size() < costs_.kinds()) kinds_.resize(costs_.kinds());
    kinds_[job.kind].push({0.0, numbers_.enter(job), job});
  }
  void withdraw(const Job& job) override { numbers_.leave(job); }
  bool pick(double now_us, const Elements& elements, Choice& choice) override {
    double best_us = kNever;
    std::uint64_t first = 0;
    for (Ring<Numbered>& queue : kinds_) {
      while (!queue.empty() && !numbers_.waits(queue.front().job, queue.front().number)) queue.pop();
      if (queue.empty()) continue;
      const Numbered& head = queue.front();
      const CostRow& row = costs_.row(head.job.kind);
      for (const ElementState& element : elements) {
        if (!element.open) continue;
        const double end_us = std::max(element.free_us, now_us) + row[element.index];
        if (end_us < best_us || (end_us == best_us && head.number < first)) {
          best_us = end_us;
          first = head.number;
          choice.job = head.job;
          choice.element = element.index;
        }
      }
    }
    if (best_us == kNever) return false;
    numbers_.leave(choice.job);
    return true;
  }

 private:
  const Costs& costs_;
  Numbers numbers_;
  std::vector<Ring<Numbered>> kinds_;
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

}  // namespace

const std::vector<std::string>& policy_names() {
  static const std::vector<std::string> names{"rr",      "met",     "eft", "etf",
                                              "heft_rt", "mct",     "olb", "min_min",
                                              "least_slack", "least_slack_drop"};
  return names;
}

std::unique_ptr<Policy> make_policy(const std::string& name, const Costs& costs,
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
  if (name == "rr") return std::make_unique<RoundRobin>(costs, capacity);
  if (name == "met") return std::make_unique<CheapestType>(costs, elements, capacity);
  if (name == "etf" || name == "min_min") return std::make_unique<EarliestPair>(costs, capacity);
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
  throw Error(Status::bad_input,
              "unknown policy " + name + ", the closest is " + closest_name(name, policy_names()));
}

std::string closest_name(const std::string& name, const std::vector<std::string>& known) {
  std::string best;
  std::size_t fewest = std::numeric_limits<std::size_t>::max();
  for (const std::string& candidate : known) {
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= name.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j < row.size(); ++j) {
        const std::size_t above = row[j];
        const std::size_t changed = diagonal + (name[i - 1] == candidate[j - 1] ? 0 : 1);
        row[j] = std::min({above + 1, row[j - 1] + 1, changed});
        diagonal = above;
      }
    }
    if (row.back() < fewest) {
      fewest = row.back();
      best = candidate;
    }
  }
  return best;
}

}  // namespace nnstretch
