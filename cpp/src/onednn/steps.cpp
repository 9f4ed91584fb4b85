#include "onednn/steps.hpp"

#include <array>
#include <cstring>
#include <string>

#include "nnstretch/error.hpp"

namespace nnstretch::library {
namespace {

constexpr std::size_t kMostArguments = 8;

const dnnl::stream& stream() {
  thread_local const dnnl::stream current(engine());
  return current;
}

std::size_t floats_of(const Desc& desc) { return (desc.get_size() + 63) / 64 * 16; }

}  // namespace

const dnnl::engine& engine() {
  static const dnnl::engine host(dnnl::engine::kind::cpu, 0);
  return host;
}

Dims dims_of(const View& view) {
  return Dims(view.shape.begin(), view.shape.begin() + view.rank);
}

Desc any_of(const Dims& dims) {
  return Desc(dims, dnnl::memory::data_type::f32, dnnl::memory::format_tag::any);
}

Desc dense_of(const Dims& dims) {
  Dims strides(dims.size());
  dnnl::memory::dim step = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    strides[i] = step;
    step *= dims[i];
  }
  return Desc(dims, dnnl::memory::data_type::f32, strides);
}

Desc desc_of(const View& view, Layout layout) {
  const Dims dims = dims_of(view);
  const bool one_pixel = view.rank == 4 && view.shape[2] * view.shape[3] == 1;
  const bool either = one_pixel && block() > 0 && view.shape[1] % block() == 0 && view.contiguous();
  if (layout == Layout::plain && !either)
    return Desc(dims, dnnl::memory::data_type::f32,
                Dims(view.stride.begin(), view.stride.begin() + view.rank));
  using Tag = dnnl::memory::format_tag;
  return Desc(dims, dnnl::memory::data_type::f32, block() == 16 ? Tag::nChw16c : Tag::nChw8c);
}

Desc preferred(const View& view, Layout layout) {
  const Desc given = desc_of(view, layout);
  const Dims dims = dims_of(view);
  // A dense one means "as the caller has it", anything but blocks is worth a reorder.
  const bool blocks = given != dense_of(dims) && view.contiguous();
  return layout == Layout::blocks || blocks ? given : any_of(dims);
}

bool constant_weights(const Call& call) {
  const View& weight = call.reads[1];
  return weight.storage == Storage::weights && weight.contiguous() &&
         (call.reads.size() < 3 || !call.reads[2].present() ||
          call.reads[2].storage == Storage::weights);
}

bool is_fast(const char* implementation) {
  return std::strstr(implementation, "jit") || std::strstr(implementation, "brg");
}

Place Steps::scratch(const Desc& desc) {
  const Place place{In::scratch, scratch_floats_};
  scratch_floats_ += floats_of(desc);
  return place;
}

Place Steps::read(const Request& request, std::size_t index, const Desc& wanted) {
  return read_as(index, desc_of(request.call.reads[index], request.reads[index]), wanted);
}

Place Steps::read_as(std::size_t index, const Desc& from, const Desc& wanted) {
  const Place place{In::read, index};
  if (from == wanted) return place;
  const Place moved = scratch(wanted);
  reorder(place, from, moved, wanted);
  return moved;
}

Place Steps::weights(const float* data, const Desc& from, const Desc& wanted) {
  const std::size_t floats = floats_of(wanted);
  packed_.emplace_back(allocate_floats(floats));
  std::memset(packed_.back().get(), 0, floats * sizeof(float));
  dnnl::memory source(from, engine(), const_cast<float*>(data));
  dnnl::memory target(wanted, engine(), packed_.back().get());
  dnnl::stream now(engine());
  dnnl::reorder(source, target).execute(now, source, target);
  now.wait();
  return {In::packed, packed_.size() - 1};
}

Place Steps::write(const Request& request, const Desc& produced) {
  if (produced == desc_of(request.call.write, request.write)) return {In::write, 0};
  return scratch(produced);
}

void Steps::finish_write(const Request& request, Place from, const Desc& produced) {
  if (from.in == In::write) return;
  reorder(from, produced, {In::write, 0}, desc_of(request.call.write, request.write));
}

void Steps::reorder(Place from, const Desc& from_desc, Place to, const Desc& to_desc) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::reorder::primitive_desc moves(engine(), from_desc, engine(), to_desc, attributes);
  add(dnnl::reorder(moves), moves.scratchpad_desc(),
      {{DNNL_ARG_FROM, from, from_desc}, {DNNL_ARG_TO, to, to_desc}});
}

void Steps::add(const dnnl::primitive& primitive, const Desc& scratchpad,
                std::vector<Argument> arguments) {
  if (scratchpad.get_size() > 0)
    arguments.push_back({DNNL_ARG_SCRATCHPAD, scratch(scratchpad), scratchpad});
  if (arguments.size() > kMostArguments)
    throw Error(Status::failed, "a primitive has more than 8 arguments");
  steps_.push_back({primitive, std::move(arguments)});
}

float* Steps::address(Place place, kernels::Reads reads, const kernels::Tensor& y,
                      float* scratch) const {
  switch (place.in) {
    case In::read: return reads.tensors[place.at].data;
    case In::write: return y.data;
    case In::packed: return packed_[place.at].get();
    case In::scratch: return scratch + place.at;
  }
  return nullptr;
}

void Steps::run(kernels::Reads reads, const kernels::Tensor& y, float* scratch) const {
  for (const Step& step : steps_) {
    std::array<dnnl::memory, kMostArguments> memories;
    std::array<dnnl_exec_arg_t, kMostArguments> arguments;
    for (std::size_t i = 0; i < step.arguments.size(); ++i) {
      const Argument& argument = step.arguments[i];
      memories[i] =
          dnnl::memory(argument.desc, engine(), address(argument.place, reads, y, scratch));
      arguments[i] = {argument.name, memories[i].get()};
    }
    const dnnl_status_t status =
        dnnl_primitive_execute(step.primitive.get(), stream().get(),
                               static_cast<int>(step.arguments.size()), arguments.data());
    if (status != dnnl_success)
      throw Error(Status::failed, "oneDNN failed with status " + std::to_string(status));
  }
}

}  // namespace nnstretch::library
