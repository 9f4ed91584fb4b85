// How the calls of a network are computed on the host: kernels chosen, weights reordered once.
#pragma once

#include <memory>
#include <vector>

#include "library.hpp"
#include "nnstretch/network.hpp"

namespace nnstretch {

class Prepared {
 public:
  // `own_layouts`: maps may lie in blocks between calls, as long as the host makes all of them.
  Prepared(const Network& network, bool library, bool own_layouts);
  // `scratch`: scratch_floats() of the thread that calls.
  void compute(std::size_t call, const Memory& memory, float* scratch) const;
  std::size_t scratch_floats() const { return scratch_floats_; }
  // Calls that the library computes.
  std::size_t library_calls() const;

 private:
  struct Free {
    void operator()(float* memory) const { free_floats(memory); }
  };
  struct Unit {
    Call call;  // As kernels see it.
    std::unique_ptr<library::Kernel> library;  // Null for a portable kernel.
    std::unique_ptr<float[], Free> packed;     // Weights of a portable convolution.
    bool packs_anew = false;                   // They are computed, so that they are packed each time.
  };
  bool prepare_library(const std::vector<bool>& offered, bool own_layouts,
                       std::vector<bool>& refused);
  void pack(Unit& unit);

  const Network& network_;
  std::vector<Unit> units_;
  std::size_t scratch_floats_;
};

// Sets of kernels that this build has, the default first: "onednn", "portable".
const std::vector<std::string>& kernel_sets();
// Throws Error for a set that is not there; an empty name is the default.
bool uses_library(const std::string& kernels);

}  // namespace nnstretch
