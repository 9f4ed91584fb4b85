// Built where CMake found no library, or was told to use none.
#include "library.hpp"

namespace nnstretch::library {

const char* name() { return nullptr; }
std::int64_t block() { return 0; }
bool offers(const Call&) { return false; }
std::unique_ptr<Kernel> kernel(const Request&) { return nullptr; }
OneThread::OneThread() : before_(0) {}
OneThread::~OneThread() { (void)before_; }

}  // namespace nnstretch::library
