// Numbers as text, alike whatever locale the program has chosen: a point, no groups of digits.
#pragma once

#include <cmath>
#include <limits>
#include <locale>
#include <sstream>
#include <string>

namespace nnstretch {

// With so many digits behind the point.
inline std::string decimal(double value, int digits) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text.setf(std::ios::fixed, std::ios::floatfield);
  text.precision(digits);
  text << value;
  return text.str();
}

// Reads numbers, one after the other; infinite where one is too large.
class DecimalReader {
 public:
  DecimalReader() { stream_.imbue(std::locale::classic()); }

  // `text`: a number of JSON, as whoever asks has seen.
  double read(const std::string& text) {
    double value = 0.0;
    stream_.clear();
    stream_.str(text);
    stream_ >> value;
    const bool too_large = stream_.fail() && std::abs(value) >= std::numeric_limits<double>::max();
    return too_large ? std::numeric_limits<double>::infinity() : value;
  }

 private:
  std::istringstream stream_;
};

}  // namespace nnstretch
