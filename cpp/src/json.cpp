#include "json.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <unordered_set>

#include "decimal.hpp"
#include "nnstretch/error.hpp"
#include "nnstretch/schedule.hpp"

namespace nnstretch {
namespace {

constexpr int kDeepest = 64;

class Parser {
 public:
  Parser(const std::string& text, const std::string& source) : text_(text), source_(source) {}

  Json document() {
    if (text_.compare(0, 3, "\xEF\xBB\xBF") == 0) refuse("it begins with a byte order mark");
    skip_space();
    if (at_ == text_.size())
      throw Error(Status::bad_input, source_ + (text_.empty() ? ", it is empty" : ", it is blank"));
    Json value = parse_value(0);
    skip_space();
    if (at_ != text_.size()) refuse("something follows the end");
    return value;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(Status::bad_input, source_ + ", byte " + std::to_string(at_) + ", " + why);
  }
  void skip_space() {
    const auto blank = [](char letter) {
      return letter == ' ' || letter == '\t' || letter == '\r' || letter == '\n';
    };
    while (at_ < text_.size() && blank(text_[at_])) ++at_;
  }
  char peek() { return at_ < text_.size() ? text_[at_] : '\0'; }
  void expect(char wanted) {
    skip_space();
    if (peek() != wanted) refuse(std::string("there is no '") + wanted + "'");
    ++at_;
  }
  bool take(const char* word) {
    const std::size_t length = std::strlen(word);
    if (text_.compare(at_, length, word) != 0) return false;
    at_ += length;
    return true;
  }

  Json parse_value(int depth) {
    if (depth > kDeepest) refuse("it is nested too deep");
    skip_space();
    Json value;
    if (peek() == '{') return parse_object(depth);
    if (peek() == '[') return parse_list(depth);
    if (peek() == '"') {
      value.kind = Json::Kind::text;
      value.text = parse_text();
      return value;
    }
    if (take("true") || take("false")) {
      value.kind = Json::Kind::boolean;
      value.boolean = text_[at_ - 2] == 'u';
      return value;
    }
    if (take("null")) return value;
    return parse_number();
  }

  Json parse_object(int depth) {
    Json value;
    value.kind = Json::Kind::object;
    expect('{');
    skip_space();
    if (peek() == '}') {
      ++at_;
      return value;
    }
    std::unordered_set<std::string> keys;
    while (true) {
      skip_space();
      std::string key = parse_text();
      if (!keys.insert(key).second) refuse("key " + quoted(key) + " is there twice");
      expect(':');
      value.members.emplace_back(std::move(key), parse_value(depth + 1));
      skip_space();
      if (peek() == ',') {
        ++at_;
        continue;
      }
      expect('}');
      return value;
    }
  }

  Json parse_list(int depth) {
    Json value;
    value.kind = Json::Kind::list;
    expect('[');
    skip_space();
    if (peek() == ']') {
      ++at_;
      return value;
    }
    while (true) {
      value.items.push_back(parse_value(depth + 1));
      skip_space();
      if (peek() == ',') {
        ++at_;
        continue;
      }
      expect(']');
      return value;
    }
  }

  bool take_digits() {
    const std::size_t start = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ > start;
  }

  Json parse_number() {
    const std::size_t start = at_;
    take("-");
    const bool zero = peek() == '0';
    const std::size_t whole = at_;
    bool sound = take_digits() && !(zero && at_ > whole + 1);
    if (sound && take(".")) sound = take_digits();
    if (sound && (take("e") || take("E"))) {
      if (!take("+")) take("-");
      sound = take_digits();
    }
    if (!sound) refuse("this is no number");
    Json value;
    value.kind = Json::Kind::number;
    value.number = numbers_.read(text_.substr(start, at_ - start));
    if (!std::isfinite(value.number)) refuse("the number is too large");
    return value;
  }

  std::string parse_text() {
    if (peek() != '"') refuse("there is no text in quotes");
    ++at_;
    std::string result;
    while (true) {
      if (at_ >= text_.size()) refuse("the text does not end");
      const char letter = text_[at_++];
      if (letter == '"') return result;
      if (static_cast<unsigned char>(letter) < 0x20) refuse("a control character in the text");
      if (letter == '\\')
        parse_escape(result);
      else
        result += letter;
    }
  }

  void parse_escape(std::string& result) {
    const char letter = peek();
    ++at_;
    switch (letter) {
      case 'n': result += '\n'; break;
      case 't': result += '\t'; break;
      case 'r': result += '\r'; break;
      case 'b': result += '\b'; break;
      case 'f': result += '\f'; break;
      case '"':
      case '\\':
      case '/': result += letter; break;
      case 'u': append_utf8(parse_code_point(), result); break;
      default: refuse("this is no escape");
    }
  }

  unsigned long parse_unit() {
    unsigned long unit = 0;
    for (int digit = 0; digit < 4; ++digit, ++at_) {
      const int letter = std::tolower(static_cast<unsigned char>(peek()));
      const char* const digits = "0123456789abcdef";
      const char* const at = letter == 0 ? nullptr : std::strchr(digits, letter);
      if (!at) refuse("\\u has four hexadecimal digits");
      unit = unit * 16 + static_cast<unsigned long>(at - digits);
    }
    return unit;
  }

  // Of one unit, or of two where the first is the half of a pair.
  unsigned long parse_code_point() {
    const unsigned long unit = parse_unit();
    if (unit == 0) refuse("\\u0000 in the text");
    if (unit < 0xD800 || unit > 0xDFFF) return unit;
    const unsigned long second = unit < 0xDC00 && take("\\u") ? parse_unit() : 0;
    if (second < 0xDC00 || second > 0xDFFF) refuse("half of a pair of \\u escapes");
    return 0x10000 + ((unit - 0xD800) << 10) + (second - 0xDC00);
  }

  static void append_utf8(unsigned long point, std::string& result) {
    const auto byte = [&](unsigned long bits) { result += static_cast<char>(bits); };
    if (point < 0x80) return byte(point);
    if (point < 0x800) {
      byte(0xC0 | point >> 6);
    } else if (point < 0x10000) {
      byte(0xE0 | point >> 12);
      byte(0x80 | (point >> 6 & 0x3F));
    } else {
      byte(0xF0 | point >> 18);
      byte(0x80 | (point >> 12 & 0x3F));
      byte(0x80 | (point >> 6 & 0x3F));
    }
    byte(0x80 | (point & 0x3F));
  }

  const std::string& text_;
  const std::string& source_;
  std::size_t at_ = 0;
  DecimalReader numbers_;
};

}  // namespace

Json Json::parse(const std::string& text, const std::string& source) {
  return Parser(text, source).document();
}

const Json* Json::find(const std::string& key) const {
  for (const Member& member : members)
    if (member.first == key) return &member.second;
  return nullptr;
}

void check_keys(const Json& object, const std::vector<std::string>& known,
                const std::string& where) {
  if (object.kind != Json::Kind::object)
    throw Error(Status::bad_input, where + ", this is no object");
  for (const auto& [key, value] : object.members)
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw Error(Status::bad_input, where + ", unknown key " + quoted(key) +
                                         suggestion(key, known));
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') result += '\\';
    result += static_cast<unsigned char>(letter) < 0x20 ? ' ' : letter;
  }
  return result + "\"";
}

}  // namespace nnstretch
