#include "whole_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "nnstretch/error.hpp"

namespace nnstretch {

namespace {

std::string target_of(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) return path;
  if (!S_ISREG(found.st_mode)) refuse(path + ", cannot be written, it is no regular file");
  char* const resolved = realpath(path.c_str(), nullptr);
  const std::string target = resolved != nullptr ? resolved : path;
  std::free(resolved);
  return target;
}

// Of this process and this file alone: others may write the same path at the same time.
std::string name_aside(const std::string& target) {
  static std::atomic<unsigned> count{0};
  return target + "." + std::to_string(getpid()) + "-" + std::to_string(count++) + ".unfinished";
}

}  // namespace

WholeFile::WholeFile(const std::string& path)
    : path_(path),
      target_(target_of(path)),
      aside_(name_aside(target_)),
      stream_(aside_, std::ios::binary | std::ios::trunc) {}

WholeFile::~WholeFile() {
  stream_.close();
  if (!aside_.empty()) std::remove(aside_.c_str());
}

void WholeFile::finish() {
  stream_.close();
  if (!stream_ || std::rename(aside_.c_str(), target_.c_str()) != 0)
    refuse(path_ + ", cannot be written");
  aside_.clear();
}

}  // namespace nnstretch
