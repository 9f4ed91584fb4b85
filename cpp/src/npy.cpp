#include "npy.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <type_traits>

#include "nnstretch/error.hpp"
#include "whole_file.hpp"

namespace nnstretch {
namespace {

constexpr char kArrayMagic[] = "\x93NUMPY";

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

std::vector<char> rest_of(std::ifstream& file, const std::string& path, std::size_t bytes) {
  std::vector<char> data(bytes);
  if (!file.read(data.data(), static_cast<std::streamsize>(bytes)))
    refuse_array(path, "it is cut short");
  if (file.peek() != std::ifstream::traits_type::eof())
    refuse_array(path, "it is longer than it says");
  return data;
}

template <typename Number>
std::vector<float> numbers_of(const std::vector<char>& data, const std::string& path) {
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
  std::ifstream file(path, std::ios::binary);
  char start[10] = {};
  if (!file || !file.read(start, 10) || std::memcmp(start, kArrayMagic, 6) != 0)
    refuse_array(path, "this is no .npy file");
  std::size_t length = static_cast<unsigned char>(start[8]) |
                       static_cast<std::size_t>(static_cast<unsigned char>(start[9])) << 8;
  if (start[6] != 1) {
    char more[2] = {};
    if (!file.read(more, 2)) refuse_array(path, "its header ends early");
    length |= static_cast<std::size_t>(static_cast<unsigned char>(more[0])) << 16 |
              static_cast<std::size_t>(static_cast<unsigned char>(more[1])) << 24;
  }
  if (length > 65536) refuse_array(path, "its header is too long");
  std::string header(length, ' ');
  if (!file.read(header.data(), static_cast<std::streamsize>(length)))
    refuse_array(path, "its header ends early");
  const std::string type = field(header, "descr");
  if (type != "'<f4'" && !(whole && (type == "'<i4'" || type == "'<i8'")))
    refuse_array(path, "its numbers are " + type + ", float32 ('<f4')" +
                           (whole ? ", int32 or int64 is wanted" : " is wanted"));
  if (field(header, "fortran_order") != "False") refuse_array(path, "it is in Fortran order");
  if (field(header, "shape") != python_shape(shape))
    refuse_array(path, "its shape is " + field(header, "shape") + ", the network takes " +
                 python_shape(shape));
  std::size_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  if (type == "'<i4'") return numbers_of<std::int32_t>(rest_of(file, path, count * 4), path);
  if (type == "'<i8'") return numbers_of<std::int64_t>(rest_of(file, path, count * 8), path);
  return numbers_of<float>(rest_of(file, path, count * 4), path);
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
