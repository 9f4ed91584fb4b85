#include "regular_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "nnstretch/error.hpp"

namespace nnstretch {

RegularFile::RegularFile(const std::string& path, const std::string& name)
    : name_(name), descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) refuse(name + ", cannot be opened: " + std::strerror(errno));
  struct stat facts {};
  if (fstat(descriptor_, &facts) == 0 && S_ISREG(facts.st_mode)) {
    size_bytes_ = static_cast<std::size_t>(facts.st_size);
    return;
  }
  close(descriptor_);
  refuse(name + (S_ISDIR(facts.st_mode) ? ", it is a folder, no regular file"
                                        : ", it is no regular file"));
}

RegularFile::~RegularFile() { close(descriptor_); }

std::string RegularFile::read(std::size_t offset, std::size_t most_bytes) const {
  std::string bytes(std::min(most_bytes, size_bytes_ - std::min(offset, size_bytes_)), '\0');
  std::size_t count = 0;
  while (count < bytes.size()) {
    const ssize_t part = pread(descriptor_, &bytes[count], bytes.size() - count,
                               static_cast<off_t>(offset + count));
    if (part < 0 && errno != EINTR)
      refuse(name_ + ", cannot be read: " + std::strerror(errno));
    if (part == 0) break;
    if (part > 0) count += static_cast<std::size_t>(part);
  }
  bytes.resize(count);
  return bytes;
}

std::string read_text(const std::string& path, std::size_t most_bytes) {
  const RegularFile file(path);
  if (file.size_bytes() > most_bytes)
    refuse(path + ", it is too large, " + std::to_string(file.size_bytes()) + " bytes, at most " +
           std::to_string(most_bytes) + " are read");
  return file.read(0, most_bytes);
}

}  // namespace nnstretch
