// JSON, strictly: no comments, no duplicate keys, bounded depth; and text that is safe inside it.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace nnstretch {

class Json {
 public:
  enum class Kind { null, boolean, number, text, list, object };
  using Member = std::pair<std::string, Json>;

  // Throws Error that names `source` and the place.
  static Json parse(const std::string& text, const std::string& source);

  Kind kind = Kind::null;
  bool boolean = false;
  double number = 0.0;
  std::string text;
  std::vector<Json> items;
  std::vector<Member> members;

  // A member of an object, null where it is absent.
  const Json* find(const std::string& key) const;
};

// Throws Error with the closest name for a key that is not known, and for what is no object.
void check_keys(const Json& object, const std::vector<std::string>& known,
                const std::string& where);
std::string quoted(const std::string& text);

}  // namespace nnstretch
