// A file that is read: a pipe would block for ever, a device has no end.
#pragma once

#include <cstddef>
#include <string>

namespace nnstretch {

class RegularFile {
 public:
  // Throws Error for what cannot be opened and for what is no regular file; `name` is how messages
  // call it.
  RegularFile(const std::string& path, const std::string& name);
  explicit RegularFile(const std::string& path) : RegularFile(path, path) {}
  ~RegularFile();
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  int descriptor() const { return descriptor_; }
  std::size_t size_bytes() const { return size_bytes_; }
  // Bytes from an offset on, fewer where the file ends. Throws Error where they cannot be read.
  std::string read(std::size_t offset, std::size_t most_bytes) const;

 private:
  std::string name_;
  int descriptor_;
  std::size_t size_bytes_ = 0;
};

// All of a file. Throws Error where it is larger, before a byte is read.
std::string read_text(const std::string& path, std::size_t most_bytes);

}  // namespace nnstretch
