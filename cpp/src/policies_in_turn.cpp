#include <algorithm>
#include <cstdint>
#include <string>

#include "policies.hpp"
#include "waiting.hpp"

namespace nnstretch {
namespace {

// Elements in turn: one pointer, which moves on with every try.
class InTurn {
 public:
  std::size_t next(const std::vector<ElementState>& elements, std::uint64_t mask) {
    while (true) {
      const ElementState& element = elements[pointer_];
      pointer_ = (pointer_ + 1) % elements.size();
      if (element.open && (mask >> element.index & 1) != 0) return element.index;
    }
  }

 private:
  std::size_t pointer_ = 0;
};

class RoundRobin : public Policy {
 public:
  RoundRobin(const Costs& costs, std::size_t capacity) : costs_(costs), waiting_(costs, capacity) {}

  void add(const Job& job) override { waiting_.add(job, 0.0); }
  void withdraw(const Job& job) override { waiting_.remove(job); }
  bool pick(double, const std::vector<ElementState>& elements, Choice& choice) override {
    const Numbered* head = waiting_.head(open_mask(elements));
    if (!head) return false;
    choice.job = head->job;
    waiting_.remove(choice.job);
    choice.element = turn_.next(elements, costs_.mask(choice.job.kind));
    return true;
  }

 private:
  const Costs& costs_;
  LeastKeyFirst waiting_;
  InTurn turn_;
};

// The cheapest type of element whatever its load, of equal ones the last; of that type in turn.
class CheapestType : public Policy {
 public:
  CheapestType(const Costs& costs, const std::vector<ElementState>& elements, std::size_t capacity)
      : costs_(costs) {
    for (const ElementState& element : elements) {
      const auto known = std::find(types_.begin(), types_.end(), element.type);
      const auto type = static_cast<std::size_t>(known - types_.begin());
      type_of_.push_back(type);
      if (known == types_.end()) {
        types_.push_back(element.type);
        masks_.push_back(0);
        waiting_.emplace_back(costs, capacity);
      }
      masks_[type] |= std::uint64_t{1} << element.index;
    }
  }

  void add(const Job& job) override {
    waiting_[cheapest(job)].add(job, static_cast<double>(++added_));
  }
  void withdraw(const Job& job) override {
    for (LeastKeyFirst& queue : waiting_) queue.remove(job);
  }
  bool pick(double, const std::vector<ElementState>& elements, Choice& choice) override {
    const std::uint64_t open = open_mask(elements);
    const Numbered* first = nullptr;
    std::size_t type = 0;
    for (std::size_t i = 0; i < types_.size(); ++i) {
      const Numbered* head = waiting_[i].head(open & masks_[i]);
      if (head && (!first || head->key < first->key)) {
        first = head;
        type = i;
      }
    }
    if (!first) return false;
    choice.job = first->job;
    withdraw(choice.job);
    choice.element = turn_.next(elements, masks_[type] & costs_.mask(choice.job.kind));
    return true;
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

  const Costs& costs_;
  std::vector<std::string> types_;
  std::vector<std::size_t> type_of_;
  std::vector<std::uint64_t> masks_;
  std::vector<LeastKeyFirst> waiting_;
  std::uint64_t added_ = 0;
  InTurn turn_;
};

}  // namespace

std::unique_ptr<Policy> round_robin(const Costs& costs, std::size_t capacity) {
  return std::make_unique<RoundRobin>(costs, capacity);
}

std::unique_ptr<Policy> cheapest_type(const Costs& costs, const std::vector<ElementState>& elements,
                                      std::size_t capacity) {
  return std::make_unique<CheapestType>(costs, elements, capacity);
}

}  // namespace nnstretch
