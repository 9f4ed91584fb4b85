#include "json.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "nnstretch/error.hpp"
#include "nnstretch/schedule.hpp"

namespace nnstretch {
namespace {

constexpr int kDeepest = 64;

class Parser {
 public:
  Parser(const std::string& text, const std::string& source) : text_(text), source_(source) {}

  Json document() {
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
    while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_]) != nullptr) ++at_;
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
    while (true) {
      skip_space();
      std::string key = parse_text();
      if (value.find(key)) refuse("key " + quoted(key) + " is there twice");
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

  Json parse_number() {
    const std::size_t start = at_;
    while (at_ < text_.size() && std::strchr("+-0123456789.eE", text_[at_]) != nullptr) ++at_;
    const std::string digits = text_.substr(start, at_ - start);
    char* end = nullptr;
    Json value;
    value.kind = Json::Kind::number;
    value.number = std::strtod(digits.c_str(), &end);
    if (digits.empty() || *end != '\0' || !std::isfinite(value.number)) refuse("this is no number");
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
      result += letter == '\\' ? parse_escape() : letter;
    }
  }

  char parse_escape() {
    const char letter = peek();
    ++at_;
    switch (letter) {
      case 'n': return '\n';
      case 't': return '\t';
      case 'r': return '\r';
      case 'b': return '\b';
      case 'f': return '\f';
      case '"':
      case '\\':
      case '/': return letter;
      default: refuse("an escape that is not read here");
    }
  }

  const std::string& text_;
  const std::string& source_;
  std::size_t at_ = 0;
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

std::string read_text(const std::string& path, std::size_t most_bytes) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(Status::bad_input, path + ", cannot be opened");
  std::string text;
  char part[65536];
  while (file.read(part, sizeof part) || file.gcount() > 0) {
    text.append(part, static_cast<std::size_t>(file.gcount()));
    if (text.size() > most_bytes) throw Error(Status::bad_input, path + ", it is too large");
  }
  return text;
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
