#include "nnstretch/error.hpp"

#include <cstdio>

namespace nnstretch {
namespace {

constexpr std::size_t kLongest = 2000;

// The middle of what is long is left out: what is wrong stands at the end.
std::string shortened(const std::string& text) {
  if (text.size() <= kLongest) return text;
  return text.substr(0, kLongest / 2) + "..." + text.substr(text.size() - kLongest / 2);
}

// A terminal obeys control characters, those behind 0xC2 in UTF-8 among them.
std::string one_line(const std::string& text) {
  std::string line;
  unsigned char before = 0;
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    const bool second_set = before == 0xC2 && code >= 0x80 && code < 0xA0;
    before = code;
    if (code >= 0x20 && code != 0x7F && !second_set) {
      line += letter;
      continue;
    }
    if (second_set) line.pop_back();
    char escape[8];
    std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned>(code));
    line += escape;
  }
  return line;
}

}  // namespace

Error::Error(Status status, const std::string& message)
    : std::runtime_error(one_line(shortened(message))), status_(status) {}

}  // namespace nnstretch
