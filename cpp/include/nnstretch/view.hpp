// A view: where a tensor lies in memory, as shape and strides over one storage.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

namespace nnstretch {

constexpr int kMaxRank = 8;
using Extents = std::array<std::int64_t, kMaxRank>;

enum class Storage : std::uint8_t { none, input, output, weights, arena };

// Offsets and strides count elements (float32), never bytes.
struct View {
  Storage storage = Storage::none;
  std::uint32_t slot = 0;  // Which input or output; 0 for weights and arena.
  std::int64_t offset = 0;
  int rank = 0;
  Extents shape{};
  Extents stride{};

  bool present() const { return storage != Storage::none; }
  std::int64_t elements() const;
  bool contiguous() const;
  // First element, and one past the last element, that the view may touch.
  std::int64_t first() const;
  std::int64_t end() const;
};

// A contiguous view.
View dense(Storage storage, std::uint32_t slot, std::int64_t offset,
           std::initializer_list<std::int64_t> shape);
// A view with its own strides.
View strided(Storage storage, std::uint32_t slot, std::int64_t offset,
             std::initializer_list<std::int64_t> shape, std::initializer_list<std::int64_t> stride);

}  // namespace nnstretch
