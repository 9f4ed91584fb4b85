#include "npy.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <type_traits>

#include "nnstretch/error.hpp"
#include "regular_file.hpp"
#include "whole_file.hpp"

namespace nnstretch {
namespace {

constexpr char kArrayMagic[] = "\x93NUMPY";
constexpr std::size_t kLongestHeader = 65536;

[[noreturn]] void refuse_array(const std::string& path, const std::string& why) {
  refuse(path + ", " + why);
}

// The value of a key in the header's dictionary, up to the comma or bracket that ends it.
std::string field(const std::string& header, const std::string& key) {
  const std::size_t at = header.find("'" + key + "':");
  if (at == std::string::npos) return "";
  std::size_t begin = at + key.size() + 3;
  while (begin < header.size() && header[begin] == ' ') ++begin;
  const char closing = begin < header.size() && header[begin] == '(' ? ')' : ',';
  const std::size_t end = header.find(closing, begin);
  if (end == std::string::npos) return "";
  return header.substr(begin, end - begin + (closing == ')' ? 1 : 0));
}

std::string python_shape(const std::vector<std::int64_t>& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

std::string text_of_field(const std::string& text) {
  constexpr std::size_t kShown = 60;
  return text.empty() ? "missing" : text.substr(0, kShown) + (text.size() > kShown ? "..." : "");
}

// The dictionary of a .npy file, and where its numbers begin.
struct Header {
  std::string text;
  std::size_t end_bytes = 0;
};

Header header_of(const RegularFile& file, const std::string& path) {
  const std::string start = file.read(0, 12 + kLongestHeader);
  if (start.size() < 10 || std::memcmp(start.data(), kArrayMagic, 6) != 0)
    refuse_array(path, start.empty() ? "it is empty, no .npy file" : "this is no .npy file");
  const int version = static_cast<unsigned char>(start[6]);
  if (version < 1 || version > 3)
    refuse_array(path, "its version of .npy is " + std::to_string(version) + ", 1 to 3 are known");
  const std::size_t begin = version == 1 ? 10 : 12;
  std::size_t length = 0;
  for (std::size_t at = std::min(begin, start.size()); at-- > 8;)
    length = length << 8 | static_cast<unsigned char>(start[at]);
  if (length > kLongestHeader) refuse_array(path, "its header is too long");
  if (start.size() < begin + length) refuse_array(path, "its header ends early");
  return {start.substr(begin, length), begin + length};
}

std::string numbers_behind(const RegularFile& file, const std::string& path, const Header& header,
                           std::size_t bytes) {
  if (file.size_bytes() - header.end_bytes < bytes) refuse_array(path, "it is cut short");
  if (file.size_bytes() - header.end_bytes > bytes)
    refuse_array(path, "it is longer than it says");
  std::string data = file.read(header.end_bytes, bytes);
  if (data.size() != bytes) refuse_array(path, "it is cut short");
  return data;
}

template <typename Number>
std::vector<float> numbers_of(const std::string& data, const std::string& path) {
  constexpr auto kExact = static_cast<double>(1 << 24);  // Up to here float32 holds whole numbers.
  std::vector<float> numbers(data.size() / sizeof(Number));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    Number number;
    std::memcpy(&number, data.data() + i * sizeof number, sizeof number);
    if (!std::is_floating_point_v<Number> && std::abs(static_cast<double>(number)) > kExact)
      refuse_array(path, "it holds " + std::to_string(number) + ", whole numbers are at most 2^24");
    numbers[i] = static_cast<float>(number);
  }
  return numbers;
}

}  // namespace

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t size : shape) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text.empty() ? "scalar" : text;
}

std::vector<float> read_npy(const std::string& path, const std::vector<std::int64_t>& shape,
                            bool whole) {
  const RegularFile file(path);
  const Header header = header_of(file, path);
  const std::string type = field(header.text, "descr");
  if (type != "'<f4'" && !(whole && (type == "'<i4'" || type == "'<i8'")))
    refuse_array(path, "its numbers are " + text_of_field(type) + ", float32 ('<f4')" +
                           (whole ? ", int32 or int64 is wanted" : " is wanted"));
  const std::string order = field(header.text, "fortran_order");
  if (order != "False")
    refuse_array(path, order == "True" ? "it is in Fortran order"
                                       : "whether it is in Fortran order is " +
                                             text_of_field(order) + ", False is wanted");
  const std::string actual_shape = field(header.text, "shape");
  if (actual_shape != python_shape(shape))
    refuse_array(path, "its shape is " + text_of_field(actual_shape) + ", wanted is " +
                 python_shape(shape));
  std::size_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  const std::string data = numbers_behind(file, path, header, count * (type == "'<i8'" ? 8 : 4));
  if (type == "'<i4'") return numbers_of<std::int32_t>(data, path);
  if (type == "'<i8'") return numbers_of<std::int64_t>(data, path);
  return numbers_of<float>(data, path);
}

void write_npy(const std::string& path, const std::vector<std::int64_t>& shape,
               const std::vector<float>& numbers) {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': " + python_shape(shape) +
                       ", }";
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  WholeFile whole(path);
  std::ofstream& file = whole.stream();
  file.write(kArrayMagic, 6);
  const char version[4] = {1, 0, static_cast<char>(header.size() & 255),
                           static_cast<char>(header.size() >> 8)};
  file.write(version, 4);
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  file.write(reinterpret_cast<const char*>(numbers.data()),
             static_cast<std::streamsize>(numbers.size() * sizeof(float)));
  whole.finish();
}

}  // namespace nnstretch
