// A file that is there whole, or as it was before.
#pragma once

#include <fstream>
#include <string>

namespace nnstretch {

class WholeFile {
 public:
  // Refuses a path that is there and is no regular file; a link to one is followed.
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
