#include "layouts.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace nnstretch {
namespace {

using library::Layout;
using Interval = std::pair<std::int64_t, std::int64_t>;

constexpr std::size_t kNoValue = static_cast<std::size_t>(-1);

std::int64_t pixels(const View& view) { return view.shape[2] * view.shape[3]; }

// Channels of a dense map, all of them or a row of whole blocks.
bool regular(const View& view, std::int64_t block) {
  if (view.rank != 4 || view.storage != Storage::arena || view.shape[1] % block != 0) return false;
  View maps = view;
  maps.shape[0] = 1;
  return maps.contiguous() && (view.shape[0] == 1 || view.contiguous());
}

bool number_by_number(const Operation& operation) {
  return std::holds_alternative<Elementwise>(operation) ||
         std::holds_alternative<Binary>(operation) || std::holds_alternative<Scalar>(operation) ||
         std::holds_alternative<Copy>(operation);
}

bool is_max_pool(const Operation& operation) {
  const auto* pool = std::get_if<Pool2d>(&operation);
  return pool && pool->pooling == Pooling::max;
}

// A mean, sum or maximum over whole maps.
bool over_maps(const Call& call) {
  if (call.reads.empty() || call.reads[0].rank != 4) return false;
  if (const auto* reduce = std::get_if<Reduce>(&call.operation)) return reduce->axes == 2;
  const auto* pool = std::get_if<AdaptivePool2d>(&call.operation);
  return pool && call.write.rank == 4 && pixels(call.write) == 1;
}

// Values of the arena: what a call writes, together with what is read as one with it.
class Values {
 public:
  Values(const std::vector<Call>& calls, std::int64_t block)
      : calls_(calls), block_(block), parent_(calls.size()), plain_(calls.size(), false),
        free_(calls.size(), false), anchor_(calls.size()) {
    std::iota(parent_.begin(), parent_.end(), std::size_t{0});
    for (std::size_t i = 0; i < calls.size(); ++i) {
      of_reads_.emplace_back();
      for (const View& read : calls[i].reads) of_reads_.back().push_back(read_value(i, read));
    }
  }

  std::size_t root(std::size_t value) const {
    while (parent_[value] != value) value = parent_[value];
    return value;
  }
  void join(std::size_t a, std::size_t b) {
    if (a == kNoValue || b == kNoValue) return;
    plain_[root(a)] = plain_[root(a)] || plain_[root(b)];
    parent_[root(b)] = root(a);
  }
  void keep_plain(std::size_t value) {
    if (value != kNoValue) plain_[root(value)] = true;
  }
  // One that is seen both as numbers of channels and as maps was reshaped between.
  bool plain(std::size_t value) const {
    if (value == kNoValue) return true;
    const std::size_t top = root(value);
    return plain_[top] || (free_[top] && anchor_[top]);
  }
  std::size_t of_read(std::size_t call, std::size_t read) const { return of_reads_[call][read]; }

  // All views of a value must agree on where blocks begin.
  void check(std::size_t value, const View& view) {
    if (value == kNoValue) return;
    if (layout_free(view, block_)) {
      free_[root(value)] = true;
      return;
    }
    if (!regular(view, block_)) return keep_plain(value);
    const View*& anchor = anchor_[root(value)];
    if (!anchor) anchor = &view;
    const bool same_maps = anchor->shape[2] == view.shape[2] && anchor->shape[3] == view.shape[3] &&
                           anchor->shape[0] == view.shape[0];
    const std::int64_t apart = view.offset - anchor->offset;
    const bool whole = view.shape[0] == 1 ||
                       (apart == 0 && anchor->shape[1] == view.shape[1]);
    if (!same_maps || !whole || apart % (block_ * pixels(view)) != 0) keep_plain(value);
  }

 private:
  // Who wrote what a view reads, the latest first; several writers become one value.
  std::size_t read_value(std::size_t reader, const View& view) {
    if (view.storage != Storage::arena) return kNoValue;
    std::vector<Interval> open{{view.first(), view.end()}};
    std::size_t value = kNoValue;
    for (std::size_t i = reader; i-- > 0 && !open.empty();) {
      const View& write = calls_[i].write;
      if (write.storage != Storage::arena || !cut(open, write)) continue;
      if (value == kNoValue) value = i;
      join(value, i);
    }
    return value;
  }

  // Take what a write covers out of the intervals; false where it touches none.
  static bool cut(std::vector<Interval>& open, const View& write) {
    const Interval covered{write.first(), write.end()};
    std::vector<Interval> remaining;
    bool touched = false;
    for (const Interval& part : open) {
      if (covered.first >= part.second || part.first >= covered.second) {
        remaining.push_back(part);
        continue;
      }
      touched = true;
      if (!write.contiguous()) {
        remaining.push_back(part);
        continue;
      }
      if (part.first < covered.first) remaining.emplace_back(part.first, covered.first);
      if (covered.second < part.second) remaining.emplace_back(covered.second, part.second);
    }
    open = std::move(remaining);
    return touched;
  }

  const std::vector<Call>& calls_;
  std::int64_t block_;
  std::vector<std::size_t> parent_;
  std::vector<bool> plain_;
  std::vector<bool> free_;
  std::vector<const View*> anchor_;
  std::vector<std::vector<std::size_t>> of_reads_;
};

// All operands of a call that computes number by number lie alike, but those that are layout-free.
void join_operands(Values& values, const std::vector<Call>& calls, std::size_t index,
                   std::int64_t block) {
  const Call& call = calls[index];
  bool alike = call.write.storage == Storage::arena;
  for (const View& read : call.reads) {
    const bool each_image = read.rank == 4 && (read.shape[0] == 1 ||
                                               read.stride[0] == read.shape[1] * read.stride[1]);
    alike = alike && (layout_free(read, block) ? each_image : read.storage == Storage::arena);
  }
  for (std::size_t i = 0; i < call.reads.size(); ++i) {
    if (layout_free(call.reads[i], block)) continue;
    values.join(index, values.of_read(index, i));
  }
  if (!alike) values.keep_plain(index);
  if (alike) return;
  for (std::size_t i = 0; i < call.reads.size(); ++i)
    if (!layout_free(call.reads[i], block)) values.keep_plain(values.of_read(index, i));
}

View strided_like(const View& view, std::initializer_list<std::int64_t> shape,
                  std::initializer_list<std::int64_t> stride) {
  return strided(view.storage, view.slot, view.offset, shape, stride);
}

// Maps as (N,C/b,b,H,W), however they lie.
View in_blocks(const View& view, Layout layout, std::int64_t block) {
  const bool blocks = layout == Layout::blocks;
  const std::int64_t maps = pixels(view);
  const std::int64_t between_channels = blocks ? maps : view.stride[1];
  return strided_like(
      view, {view.shape[0], view.shape[1] / block, block, view.shape[2], view.shape[3]},
      {view.stride[0], block * between_channels, blocks ? 1 : view.stride[1],
       blocks ? block * view.shape[3] : view.stride[2], blocks ? block : view.stride[3]});
}

}  // namespace

bool layout_free(const View& view, std::int64_t block) {
  if (!view.present() || view.rank != 4) return false;
  const bool one_pixel = pixels(view) == 1 && view.shape[1] % block == 0;
  const bool repeated = (view.shape[2] == 1 || view.stride[2] == 0) &&
                        (view.shape[3] == 1 || view.stride[3] == 0);
  return one_pixel || repeated;
}

std::vector<CallLayouts> choose_layouts(const std::vector<Call>& calls,
                                        const std::vector<bool>& library, std::int64_t block) {
  Values values(calls, block);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (number_by_number(calls[i].operation)) join_operands(values, calls, i, block);
  }
  for (std::size_t i = 0; i < calls.size(); ++i) {
    // A matrix product of a library reads rows and columns, not maps.
    const bool maps = library[i] && !std::holds_alternative<Matmul>(calls[i].operation);
    const bool able =
        maps || number_by_number(calls[i].operation) || is_max_pool(calls[i].operation);
    if (!able || calls[i].write.storage != Storage::arena)
      values.keep_plain(layout_free(calls[i].write, block) ? kNoValue : i);
    for (std::size_t r = 0; r < calls[i].reads.size(); ++r) {
      const std::size_t value = values.of_read(i, r);
      if (!able && !(r == 0 && over_maps(calls[i]))) values.keep_plain(value);
      values.check(value, calls[i].reads[r]);
    }
    if (calls[i].write.storage == Storage::arena) values.check(i, calls[i].write);
  }
  std::vector<CallLayouts> layouts(calls.size());
  const auto layout_of = [&](std::size_t value, const View& view) {
    const bool blocks = !values.plain(value) && view.present() && !layout_free(view, block);
    return blocks ? Layout::blocks : Layout::plain;
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const bool arena = calls[i].write.storage == Storage::arena;
    layouts[i].write = arena ? layout_of(i, calls[i].write) : Layout::plain;
    for (std::size_t r = 0; r < calls[i].reads.size(); ++r)
      layouts[i].reads.push_back(layout_of(values.of_read(i, r), calls[i].reads[r]));
  }
  return layouts;
}

Call on_blocks(const Call& call, const CallLayouts& layouts, std::int64_t block) {
  Call changed = call;
  const bool reads_blocks = std::count(layouts.reads.begin(), layouts.reads.end(), Layout::blocks);
  if (!reads_blocks && layouts.write == Layout::plain) return changed;
  const View& x = call.reads[0];
  if (over_maps(call)) {
    changed.reads[0] = in_blocks(x, Layout::blocks, block);
    const View& y = call.write;
    changed.write = strided_like(y, {y.shape[0], y.shape[1] / block, block},
                                 {y.stride[0], block * y.stride[1], y.stride[1]});
    if (const auto* pool = std::get_if<AdaptivePool2d>(&call.operation))
      changed.operation =
          Reduce{pool->pooling == Pooling::max ? Reduction::max : Reduction::mean, 2};
    return changed;
  }
  if (is_max_pool(call.operation)) {
    changed.reads[0] = in_blocks(x, layouts.reads[0], block);
    changed.write = in_blocks(call.write, layouts.write, block);
    return changed;
  }
  const View& y = call.write;
  const std::int64_t outer = y.shape[0] * y.shape[1] / block;
  const auto blocks = [&](const View& view) {
    if (!layout_free(view, block))
      return strided_like(view, {outer, pixels(y), block}, {block * pixels(y), block, 1});
    // One number a channel, for every image its own.
    return strided_like(view, {outer, pixels(y), block}, {block * view.stride[1], 0, view.stride[1]});
  };
  for (View& read : changed.reads) read = blocks(read);
  changed.write = blocks(y);
  return changed;
}

}  // namespace nnstretch
