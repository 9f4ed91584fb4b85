#include <algorithm>
#include <cmath>
#include <utility>

#include "nnstretch/error.hpp"
#include "nnstretch/schedule.hpp"

namespace nnstretch {

constexpr double kMovingShare = 0.1;
constexpr double kRounding = 1e-9;  // Share of a time that its floating-point number may be off.

void Costs::add(const std::string& name, CostRow row) {
  std::uint64_t mask = 0;
  std::vector<Learnt> learnt;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (std::isnan(row[i]) || row[i] < 0)
      refuse("cost of " + name + " is " + std::to_string(row[i]) +
             ", it is a number of microseconds, 0 or more");
    if (std::isfinite(row[i])) mask |= std::uint64_t{1} << i;
    learnt.push_back({row[i], 1.0, 0});
  }
  if (mask == 0)
    refuse(name + " has a cost on none of the elements, costs");
  rows_.push_back(std::move(row));
  learnt_.push_back(std::move(learnt));
  masks_.push_back(mask);
}

void Costs::observe(std::size_t kind, std::size_t element, double start_us, double end_us) {
  Learnt& learnt = learnt_[kind][element];
  if (learnt.quiet_us <= 0) return;
  ++learnt.count;
  const double took_us = end_us - start_us;
  if (!(std::abs(took_us - learnt.quiet_us * learnt.ratio) > kRounding * end_us)) return;
  const double share = std::max(kMovingShare, 1.0 / static_cast<double>(learnt.count));
  learnt.ratio += share * (took_us / learnt.quiet_us - learnt.ratio);
  rows_[kind][element] = learnt.quiet_us * learnt.ratio;
}

}  // namespace nnstretch
