// A file that is there whole, or as it was before.
#pragma once

#include <fstream>
#include <string>

namespace nnstretch {

// Where a path leads: two that lead to one file are equal, whether it is there or not.
std::string real_path(const std::string& path);

// From now on a signal that ends the process (SIGINT, SIGTERM, SIGHUP) takes with it what is being
// written. For programs that write one file at a time.
void leave_nothing_unfinished();

class WholeFile {
 public:
  // Throws Error for a path that cannot be written, or is there and is no regular file; a link to
  // one is followed. Nothing changes before finish().
  explicit WholeFile(const std::string& path);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  std::ofstream& stream() { return stream_; }
  // Puts what was written in the place of what was there.
  void finish();

 private:
  std::string path_;
  std::string target_;
  std::string aside_;
  std::ofstream stream_;
};

}  // namespace nnstretch
