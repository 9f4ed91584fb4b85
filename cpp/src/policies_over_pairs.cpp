#include <algorithm>
#include <cstdint>

#include "policies.hpp"
#include "waiting.hpp"

namespace nnstretch {
namespace {

// The pair of job and element that ends first of all pairs; of equals the first job, then the first
// element. Pairs of one element differ by their cost alone, so only its cheapest job can win, and
// jobs of a kind cost the same, so only the first of each.
class EarliestPair : public Policy {
 public:
  EarliestPair(const Costs& costs, std::size_t capacity)
      : costs_(costs), waiting_(costs.kinds(), capacity) {}

  void add(const Job& job) override { waiting_.add(job); }
  void withdraw(const Job& job) override { waiting_.remove(job); }
  bool pick(double now_us, const std::vector<ElementState>& elements, Choice& choice) override {
    double best_us = kNever;
    std::uint64_t first = 0;
    for (const ElementState& element : elements) {
      double cost_us = kNever;
      std::size_t kind = element.open ? cheapest(element.index, cost_us) : 0;
      if (cost_us == kNever) continue;
      const double end_us = std::max(element.free_us, now_us) + cost_us;
      const std::uint64_t number = waiting_.number(kind);
      if (end_us < best_us || (end_us == best_us && number < first)) {
        best_us = end_us;
        first = number;
        choice.job = waiting_.first(kind);
        choice.element = element.index;
      }
    }
    if (best_us == kNever) return false;
    waiting_.remove(choice.job);
    return true;
  }

 private:
  std::size_t cheapest(std::size_t element, double& cost_us) const {
    std::size_t best = 0;
    for (std::size_t kind = 0; kind < waiting_.kinds(); ++kind) {
      if (waiting_.empty(kind)) continue;
      const double us = costs_.row(kind)[element];
      if (us > cost_us || us == kNever) continue;
      if (us < cost_us || waiting_.number(kind) < waiting_.number(best)) {
        cost_us = us;
        best = kind;
      }
    }
    return best;
  }

  const Costs& costs_;
  ByKind waiting_;
};

}  // namespace

std::unique_ptr<Policy> earliest_pair(const Costs& costs, std::size_t capacity) {
  return std::make_unique<EarliestPair>(costs, capacity);
}

}  // namespace nnstretch
