// Primitives of oneDNN one after the other on operands of a call, with reorders where they want
// other layouts; the API of 2.x and of 3.x.
#pragma once

#include <memory>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include "library.hpp"

namespace nnstretch::library {

using Dims = dnnl::memory::dims;
using Desc = dnnl::memory::desc;

const dnnl::engine& engine();

// What a view of the call looks like to oneDNN.
Desc desc_of(const View& view, Layout layout);
// The same sizes in the layout that oneDNN likes best.
Desc any_of(const Dims& dims);
Desc dense_of(const Dims& dims);
Dims dims_of(const View& view);
// How a primitive should have a map: as it lies where that is in blocks, else as oneDNN likes.
Desc preferred(const View& view, Layout layout);
// Whether weights and bias are there when the network is opened.
bool constant_weights(const Call& call);

enum class In : std::uint8_t { read, write, packed, scratch };

// Where an argument's numbers are: which read, or floats from the start of the memory.
struct Place {
  In in = In::scratch;
  std::size_t at = 0;
};

struct Argument {
  int name;
  Place place;
  Desc desc;
};

class Steps : public Kernel {
 public:
  // A read in the layout that is wanted, reordered in scratch where it is in another.
  Place read(const Request& request, std::size_t index, const Desc& wanted);
  Place read_as(std::size_t index, const Desc& from, const Desc& wanted);
  // Weights in the layout that is wanted, reordered now.
  Place weights(const float* data, const Desc& from, const Desc& wanted);
  Place scratch(const Desc& desc);
  // Where a primitive may leave the result; finish_write() moves it from there.
  Place write(const Request& request, const Desc& produced);
  void finish_write(const Request& request, Place from, const Desc& produced);
  // A primitive; its own working memory is added to the arguments.
  void add(const dnnl::primitive& primitive, const Desc& scratchpad,
           std::vector<Argument> arguments);
  void reorder(Place from, const Desc& from_desc, Place to, const Desc& to_desc);

  void run(kernels::Reads reads, const kernels::Tensor& y, float* scratch) const override;
  std::size_t scratch_floats() const override { return scratch_floats_; }

 private:
  struct Step {
    dnnl::primitive primitive;
    std::vector<Argument> arguments;
  };
  struct Free {
    void operator()(float* memory) const { free_floats(memory); }
  };
  float* address(Place place, kernels::Reads reads, const kernels::Tensor& y,
                 float* scratch) const;

  std::vector<Step> steps_;
  std::vector<std::unique_ptr<float[], Free>> packed_;
  std::size_t scratch_floats_ = 0;
};

// Whether an implementation is one of those that are fast.
bool is_fast(const char* implementation);

}  // namespace nnstretch::library
