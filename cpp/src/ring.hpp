// A first-in, first-out queue whose memory is allocated once; it grows only beyond its capacity.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace nnstretch {

template <typename Item>
class Ring {
 public:
  explicit Ring(std::size_t capacity = 16) : items_(capacity < 16 ? 16 : capacity) {}

  bool empty() const { return count_ == 0; }
  std::size_t size() const { return count_; }
  Item& operator[](std::size_t i) { return items_[(first_ + i) % items_.size()]; }
  Item& front() { return items_[first_]; }

  void push(Item item) {
    if (count_ == items_.size()) grow();
    items_[(first_ + count_) % items_.size()] = std::move(item);
    ++count_;
  }
  void pop() {
    first_ = (first_ + 1) % items_.size();
    --count_;
  }

 private:
  void grow() {
    std::vector<Item> larger(items_.size() * 2);
    for (std::size_t i = 0; i < count_; ++i) larger[i] = std::move((*this)[i]);
    items_ = std::move(larger);
    first_ = 0;
  }
  std::vector<Item> items_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace nnstretch
