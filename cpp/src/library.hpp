// Kernels of a library that CMake has found, beside the portable ones; without one nothing is
// offered here (no_library.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernels.hpp"
#include "nnstretch/network.hpp"

namespace nnstretch::library {

// One call with all decided that can be: layouts, reordered weights, working memory.
class Kernel {
 public:
  virtual ~Kernel() = default;
  // `scratch`: scratch_floats() of the thread that calls. Throws Error where the library fails.
  virtual void run(kernels::Reads reads, const kernels::Tensor& y, float* scratch) const = 0;
  virtual std::size_t scratch_floats() const = 0;
};

// How a map (N,C,H,W) lies in memory: dense as the view says, or as (N,C/b,H,W,b) in the same place.
enum class Layout : std::uint8_t { plain, blocks };

struct Request {
  const Call& call;
  const float* weights;  // Where views of weights start.
  std::vector<Layout> reads;
  Layout write = Layout::plain;
};

// "oneDNN 2.6.3", or null.
const char* name();
// Channels in a block, as the processor's vectors have lanes; 0 where blocks gain nothing.
std::int64_t block();
// Whether kernel() may take the call in any layout of its maps.
bool offers(const Call& call);
// Null where the library has no fast kernel. Call within OneThread.
std::unique_ptr<Kernel> kernel(const Request& request);

// Tells the library's threads that this thread works alone; what was set before comes back at the
// end. A thread that computes needs it as well as the one that makes kernels.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

}  // namespace nnstretch::library
