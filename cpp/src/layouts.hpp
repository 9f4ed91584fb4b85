// Which maps of a network stay in blocks of channels between the calls of a library.
#pragma once

#include <vector>

#include "library.hpp"

namespace nnstretch {

struct CallLayouts {
  std::vector<library::Layout> reads;
  library::Layout write = library::Layout::plain;
};

// A map is kept in blocks where each call on it can work so and it takes the same memory: channels
// are a multiple of `block`, and views of parts begin between blocks. Calls with `library[i]` take
// any layout. Others that compute number by number take what they are given.
std::vector<CallLayouts> choose_layouts(const std::vector<Call>& calls,
                                        const std::vector<bool>& library, std::int64_t block);

// Whether one number a channel, or none, lies behind the view: layouts do not differ.
bool layout_free(const View& view, std::int64_t block);
// A call on maps in blocks as one on plain views, for operations that compute number by number and
// means over whole maps.
Call on_blocks(const Call& call, const CallLayouts& layouts, std::int64_t block);

}  // namespace nnstretch
