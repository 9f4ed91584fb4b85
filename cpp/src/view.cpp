#include "nnstretch/view.hpp"

#include <algorithm>

#include "nnstretch/error.hpp"

namespace nnstretch {

std::int64_t View::elements() const {
  std::int64_t count = 1;
  for (int axis = 0; axis < rank; ++axis) count *= shape[static_cast<std::size_t>(axis)];
  return count;
}

bool View::contiguous() const {
  std::int64_t expected = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    const auto i = static_cast<std::size_t>(axis);
    if (shape[i] != 1 && stride[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

std::int64_t View::first() const {
  std::int64_t at = offset;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rank); ++i)
    at += std::min<std::int64_t>(0, (shape[i] - 1) * stride[i]);
  return at;
}

std::int64_t View::end() const {
  std::int64_t at = offset;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rank); ++i)
    at += std::max<std::int64_t>(0, (shape[i] - 1) * stride[i]);
  return at + 1;
}

View strided(Storage storage, std::uint32_t slot, std::int64_t offset,
             std::initializer_list<std::int64_t> shape,
             std::initializer_list<std::int64_t> stride) {
  if (shape.size() > kMaxRank || shape.size() != stride.size())
    refuse("a view has more than 8 axes or other strides than sizes");
  View view;
  view.storage = storage;
  view.slot = slot;
  view.offset = offset;
  view.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  std::copy(stride.begin(), stride.end(), view.stride.begin());
  return view;
}

View dense(Storage storage, std::uint32_t slot, std::int64_t offset,
           std::initializer_list<std::int64_t> shape) {
  View view = strided(storage, slot, offset, shape, shape);
  std::int64_t step = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    const auto i = static_cast<std::size_t>(axis);
    view.stride[i] = step;
    step *= view.shape[i];
  }
  return view;
}

}  // namespace nnstretch
