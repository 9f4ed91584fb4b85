// Jobs that wait, in an order, so that nothing waits behind a job that cannot run now.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "nnstretch/schedule.hpp"

namespace nnstretch {

inline std::uint64_t open_mask(const std::vector<ElementState>& elements) {
  std::uint64_t mask = 0;
  for (const ElementState& element : elements)
    if (element.open) mask |= std::uint64_t{1} << element.index;
  return mask;
}

inline bool can_run(const Costs& costs, const Job& job, const ElementState& element) {
  return element.open && (costs.mask(job.kind) >> element.index & 1) != 0;
}

struct Numbered {
  double key = 0.0;
  std::uint64_t number = 0;
  Job job;
};

inline bool later(const Numbered& a, const Numbered& b) {
  return a.key != b.key ? a.key > b.key : a.number > b.number;
}

// The least key first, of equal keys the first; kept apart by the elements that can run them, of
// which there are few sets. What was withdrawn stays until it comes to the top.
class LeastKeyFirst {
 public:
  LeastKeyFirst(const Costs& costs, std::size_t capacity)
      : costs_(costs), numbers_(capacity, 0), capacity_(capacity) {
    for (std::size_t kind = 0; kind < costs.kinds(); ++kind) group(costs.mask(kind));
  }

  void add(const Job& job, double key) {
    std::vector<Numbered>& heap = group(costs_.mask(job.kind));
    if (heap.size() == heap.capacity()) drop_stale(heap);
    heap.push_back({key, numbers_[job.id] = ++added_, job});
    std::push_heap(heap.begin(), heap.end(), later);
  }
  void remove(const Job& job) { numbers_[job.id] = 0; }

  // The first that one of these elements can run.
  const Numbered* head(std::uint64_t elements) {
    const Numbered* first = nullptr;
    for (auto& [mask, heap] : groups_) {
      if ((mask & elements) == 0) continue;
      while (!heap.empty() && !waits(heap.front())) {
        std::pop_heap(heap.begin(), heap.end(), later);
        heap.pop_back();
      }
      if (!heap.empty() && (!first || later(*first, heap.front()))) first = &heap.front();
    }
    return first;
  }

 private:
  bool waits(const Numbered& entry) const { return numbers_[entry.job.id] == entry.number; }
  std::vector<Numbered>& group(std::uint64_t mask) {
    for (auto& entry : groups_)
      if (entry.first == mask) return entry.second;
    groups_.emplace_back(mask, std::vector<Numbered>());
    groups_.back().second.reserve(2 * capacity_ + 16);
    return groups_.back().second;
  }
  void drop_stale(std::vector<Numbered>& heap) {
    const auto stale = [&](const Numbered& entry) { return !waits(entry); };
    heap.erase(std::remove_if(heap.begin(), heap.end(), stale), heap.end());
    std::make_heap(heap.begin(), heap.end(), later);
  }

  const Costs& costs_;
  std::vector<std::uint64_t> numbers_;  // By id, 0 for those that do not wait.
  std::uint64_t added_ = 0;
  std::size_t capacity_;
  std::vector<std::pair<std::uint64_t, std::vector<Numbered>>> groups_;
};

// Waiting jobs of each kind in the order in which they came.
class ByKind {
 public:
  ByKind(std::size_t kinds, std::size_t capacity) : ends_(kinds), links_(capacity) {}

  void add(const Job& job) {
    if (job.kind >= ends_.size()) ends_.resize(job.kind + 1);
    Ends& ends = ends_[job.kind];
    links_[job.id] = {job, ++added_, ends.last, kNone};
    (ends.last == kNone ? ends.first : links_[ends.last].behind) = job.id;
    ends.last = job.id;
  }
  void remove(const Job& job) {
    Ends& ends = ends_[job.kind];
    const Link& link = links_[job.id];
    (link.before == kNone ? ends.first : links_[link.before].behind) = link.behind;
    (link.behind == kNone ? ends.last : links_[link.behind].before) = link.before;
  }
  std::size_t kinds() const { return ends_.size(); }
  bool empty(std::size_t kind) const { return ends_[kind].first == kNone; }
  const Job& first(std::size_t kind) const { return links_[ends_[kind].first].job; }
  std::uint64_t number(std::size_t kind) const { return links_[ends_[kind].first].number; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Ends {
    std::size_t first = kNone;
    std::size_t last = kNone;
  };
  struct Link {
    Job job;
    std::uint64_t number = 0;
    std::size_t before = kNone;
    std::size_t behind = kNone;
  };
  std::vector<Ends> ends_;
  std::vector<Link> links_;
  std::uint64_t added_ = 0;
};

}  // namespace nnstretch
