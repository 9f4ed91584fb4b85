#include "whole_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <locale>

#include "nnstretch/error.hpp"

namespace nnstretch {

namespace {

std::string target_of(const std::string& path) {
  struct stat facts;
  if (stat(path.c_str(), &facts) == 0 && !S_ISREG(facts.st_mode))
    refuse(path + ", cannot be written, it is no regular file");
  return real_path(path);
}

// Of this process and this file alone: others may write the same path at the same time.
std::string name_aside(const std::string& target) {
  static std::atomic<unsigned> count{0};
  return target + "." + std::to_string(getpid()) + "-" + std::to_string(count++) + ".unfinished";
}

// What a signal has to remove; null where nothing is being written.
std::atomic<const char*> unfinished{nullptr};
static_assert(std::atomic<const char*>::is_always_lock_free);
bool watched = false;

void remember(const std::string& path) {
  static std::list<std::string> paths;  // Kept: the signal may come at any time.
  if (watched) unfinished = paths.emplace_back(path).c_str();
}

extern "C" void end_by_signal(int number) {
  const char* const path = unfinished;
  if (path != nullptr) unlink(path);
  std::signal(number, SIG_DFL);
  std::raise(number);
}

}  // namespace

void leave_nothing_unfinished() {
  watched = true;
  for (const int number : {SIGINT, SIGTERM, SIGHUP})
    if (std::signal(number, end_by_signal) == SIG_IGN) std::signal(number, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // A file above the limit of its size is a refusal, too.
}

std::string real_path(const std::string& path) {
  const auto resolved = [](const std::string& existing) {
    char* const text = realpath(existing.c_str(), nullptr);
    const std::string result = text != nullptr ? text : "";
    std::free(text);
    return result;
  };
  const std::string whole = resolved(path);
  if (!whole.empty()) return whole;
  const std::size_t slash = path.rfind('/');
  const bool bare = slash == std::string::npos;
  const std::string folder = resolved(bare ? "." : path.substr(0, slash + 1));
  return folder.empty() ? path : folder + "/" + (bare ? path : path.substr(slash + 1));
}

WholeFile::WholeFile(const std::string& path)
    : path_(path),
      target_(target_of(path)),
      aside_(name_aside(target_)) {
  remember(aside_);
  stream_.imbue(std::locale::classic());  // Of a whole number, too, no groups of digits.
  stream_.open(aside_, std::ios::binary | std::ios::trunc);
  if (!stream_) refuse(path + ", cannot be written: " + std::strerror(errno));
}

WholeFile::~WholeFile() {
  stream_.close();
  if (!aside_.empty()) std::remove(aside_.c_str());
  unfinished = nullptr;
}

void WholeFile::finish() {
  stream_.close();
  if (!stream_ || std::rename(aside_.c_str(), target_.c_str()) != 0)
    refuse(path_ + ", cannot be written" + (errno != 0 ? std::string(": ") + std::strerror(errno) : ""));
  unfinished = nullptr;
  aside_.clear();
}

}  // namespace nnstretch
