#include "prepared.hpp"

#include <algorithm>

#include "compute.hpp"
#include "layouts.hpp"
#include "nnstretch/error.hpp"

namespace nnstretch {
namespace {

constexpr int kMaxReads = 4;

float* base_of(const Network& network, const View& view, const Memory& memory) {
  switch (view.storage) {
    case Storage::none: return nullptr;
    case Storage::input: return const_cast<float*>(memory.inputs[view.slot]);
    case Storage::output: return memory.outputs[view.slot];
    case Storage::weights: return const_cast<float*>(network.weights().data());
    case Storage::arena: return memory.arena;
  }
  return nullptr;
}

kernels::Tensor resolve(const Network& network, const View& view, const Memory& memory) {
  kernels::Tensor tensor;
  if (!view.present()) return tensor;
  tensor.data = base_of(network, view, memory) + view.offset;
  tensor.rank = view.rank;
  std::copy(view.shape.begin(), view.shape.end(), tensor.shape);
  std::copy(view.stride.begin(), view.stride.end(), tensor.stride);
  return tensor;
}

}  // namespace

const std::vector<std::string>& kernel_sets() {
  static const std::vector<std::string> sets =
      library::name() ? std::vector<std::string>{"onednn", "portable"}
                      : std::vector<std::string>{"portable"};
  return sets;
}

bool uses_library(const std::string& kernels) {
  const std::vector<std::string>& sets = kernel_sets();
  if (kernels.empty()) return sets.front() != "portable";
  if (std::find(sets.begin(), sets.end(), kernels) == sets.end())
    refuse("unknown kernels " + kernels + ", this build has " +
           (sets.size() > 1 ? "onednn and portable" : "portable"));
  return kernels != "portable";
}

Prepared::Prepared(const Network& network, bool library, bool own_layouts)
    : network_(network), scratch_floats_(kernels::kScratchFloats) {
  const library::OneThread alone;
  std::vector<bool> refused(network.calls().size(), !library);
  std::vector<bool> offered;
  do {
    offered.clear();
    for (std::size_t i = 0; i < refused.size(); ++i)
      offered.push_back(!refused[i] && library::offers(network.calls()[i]));
  } while (!prepare_library(offered, own_layouts, refused));
  for (Unit& unit : units_) {
    if (unit.library)
      scratch_floats_ = std::max(scratch_floats_, unit.library->scratch_floats());
    else
      pack(unit);
  }
}

// False where the library took a call less than it offered: the others' layouts may differ then.
bool Prepared::prepare_library(const std::vector<bool>& offered, bool own_layouts,
                               std::vector<bool>& refused) {
  const std::vector<Call>& calls = network_.calls();
  const std::int64_t block = own_layouts ? library::block() : 0;
  std::vector<CallLayouts> layouts(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i)
    layouts[i].reads.resize(calls[i].reads.size(), library::Layout::plain);
  if (block > 0 && std::find(offered.begin(), offered.end(), true) != offered.end())
    layouts = choose_layouts(calls, offered, block);
  units_.clear();
  const float* weights = network_.has_weights() ? network_.weights().data() : nullptr;
  bool all = true;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    Unit unit{calls[i], nullptr, nullptr};
    if (offered[i]) {
      unit.library = library::kernel({calls[i], weights, layouts[i].reads, layouts[i].write});
      refused[i] = !unit.library;
      all = all && unit.library;
    } else if (block > 0) {
      unit.call = on_blocks(calls[i], layouts[i], block);
    }
    units_.push_back(std::move(unit));
  }
  return all;
}

void Prepared::pack(Unit& unit) {
  const auto* conv = std::get_if<Conv2d>(&unit.call.operation);
  if (!conv) return;
  const kernels::Table& table = kernels::table();
  const View& view = unit.call.reads[1];
  const kernels::Tensor weight = resolve(network_, view, Memory{});
  const std::size_t floats = table.packed_floats(*conv, weight);
  if (floats == 0) return;
  unit.packs_anew = view.storage != Storage::weights;
  if (unit.packs_anew) {
    scratch_floats_ = std::max(scratch_floats_, kernels::kScratchFloats + floats);
    return;
  }
  unit.packed.reset(allocate_floats(floats));
  table.pack(*conv, weight, unit.packed.get());
}

std::size_t Prepared::library_calls() const {
  return static_cast<std::size_t>(
      std::count_if(units_.begin(), units_.end(), [](const Unit& unit) { return !!unit.library; }));
}

void Prepared::compute(std::size_t call, const Memory& memory, float* scratch) const {
  const Unit& unit = units_[call];
  kernels::Tensor reads[kMaxReads];
  const int count = std::min(kMaxReads, static_cast<int>(unit.call.reads.size()));
  for (int i = 0; i < count; ++i)
    reads[i] = resolve(network_, unit.call.reads[static_cast<std::size_t>(i)], memory);
  const kernels::Tensor y = resolve(network_, unit.call.write, memory);
  if (unit.library) return unit.library->run({reads, count}, y, scratch);
  const float* packed = unit.packed.get();
  if (unit.packs_anew) {
    float* const behind = scratch + kernels::kScratchFloats;
    kernels::table().pack(std::get<Conv2d>(unit.call.operation), reads[1], behind);
    packed = behind;
  }
  compute_tensors(unit.call.operation, {reads, count}, y, packed, scratch);
}

}  // namespace nnstretch
