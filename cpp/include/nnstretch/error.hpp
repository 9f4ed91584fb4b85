// The one exception of the library; the C interface turns it into a status and a message.
#pragma once

#include <stdexcept>
#include <string>

namespace nnstretch {

enum class Status : int {
  ok = 0,
  bad_input = 1,    // A file, an argument or a configuration that cannot be used.
  no_memory = 2,
  queue_full = 3,   // Refused at once: as many inferences as there are places are under way.
  too_late = 4,     // The deadline passed before the inference began or ended.
  cancelled = 5,
  failed = 6,       // An element failed while it computed.
  closed = 7,
};

class Error : public std::runtime_error {
 public:
  // The message becomes one line: it may hold text of a file.
  Error(Status status, const std::string& message);
  Status status() const { return status_; }

 private:
  Status status_;
};

[[noreturn]] inline void refuse(const std::string& why) { throw Error(Status::bad_input, why); }

}  // namespace nnstretch
