#include "nnstretch/network.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#if defined(__unix__)
#include <unistd.h>
#endif

#include "nnstretch/error.hpp"
#include "prepared.hpp"

namespace nnstretch {
namespace {

Port port_of(const std::string& name, const View& view) {
  Port port;
  port.name = name;
  for (int axis = 0; axis < view.rank; ++axis)
    port.shape.push_back(view.shape[static_cast<std::size_t>(axis)]);
  port.elements = view.elements();
  return port;
}

bool overlap(const View& a, const View& b) {
  return a.storage == b.storage && a.slot == b.slot && a.first() < b.end() && b.first() < a.end();
}

bool touches(const Call& call, const View& written) {
  const auto reads = [&](const View& view) { return view.present() && overlap(view, written); };
  return overlap(call.write, written) || std::any_of(call.reads.begin(), call.reads.end(), reads);
}

// Whether the order of two calls can be seen in what they leave in memory.
bool ordered(const Call& earlier, const Call& later) {
  return touches(later, earlier.write) || touches(earlier, later.write);
}

}  // namespace

bool fits_memory(double floats) {
#if defined(__unix__)
  const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  return pages <= 0 || page_bytes <= 0 ||
         floats * sizeof(float) <= static_cast<double>(pages) * static_cast<double>(page_bytes);
#else
  return floats >= 0;
#endif
}

float* allocate_floats(std::size_t count) {
  const std::size_t bytes = (count * sizeof(float) + 63) / 64 * 64;
  const bool fits = count <= SIZE_MAX / 8 && fits_memory(static_cast<double>(count));
  void* memory = fits ? std::aligned_alloc(64, std::max<std::size_t>(bytes, 64)) : nullptr;
  if (!memory)
    throw Error(Status::no_memory, "no memory for " + std::to_string(count) + " numbers");
  return static_cast<float*>(memory);
}

void free_floats(float* memory) { std::free(memory); }

Network::Network(std::string name, std::shared_ptr<const Weights> weights,
                 std::int64_t arena_floats)
    : name_(std::move(name)), weights_(std::move(weights)), arena_floats_(arena_floats) {}

Network::~Network() = default;

View Network::input(const std::string& name, std::initializer_list<std::int64_t> shape,
                    Numbers numbers) {
  const View view = dense(Storage::input, static_cast<std::uint32_t>(inputs_.size()), 0, shape);
  inputs_.push_back(port_of(name, view));
  inputs_.back().numbers = numbers;
  return view;
}

View Network::output(const std::string& name, std::initializer_list<std::int64_t> shape) {
  const View view = dense(Storage::output, static_cast<std::uint32_t>(outputs_.size()), 0, shape);
  outputs_.push_back(port_of(name, view));
  return view;
}

View Network::weight(const std::string& name, std::initializer_list<std::int64_t> shape) const {
  return weights_->tensor(name, shape);
}

View Network::arena(std::int64_t offset, std::initializer_list<std::int64_t> shape) {
  return dense(Storage::arena, 0, offset, shape);
}

View Network::view(const View& base, std::int64_t offset, std::initializer_list<std::int64_t> shape,
                   std::initializer_list<std::int64_t> stride) {
  return strided(base.storage, base.slot, base.offset + offset, shape, stride);
}

void Network::begin_task(const std::string& name, const std::string& placement) {
  Task task;
  task.name = name;
  task.placement = placement;
  task.first_call = task.end_call = calls_.size();
  tasks_.push_back(std::move(task));
}

void Network::call(const std::string& name, const Operation& operation,
                   std::initializer_list<View> reads, const View& write) {
  if (tasks_.empty()) begin_task(name);
  Call added{name, operation, reads, write};
  check(added);
  calls_.push_back(std::move(added));
  tasks_.back().end_call = calls_.size();
}

void Network::check(const Call& call) const {
  const auto size_of = [&](const View& view) -> std::int64_t {
    switch (view.storage) {
      case Storage::none: return 0;
      case Storage::input: return view.slot < inputs_.size() ? inputs_[view.slot].elements : 0;
      case Storage::output: return view.slot < outputs_.size() ? outputs_[view.slot].elements : 0;
      case Storage::weights:
        return static_cast<std::int64_t>(weights_->size_bytes() / sizeof(float));
      case Storage::arena: return arena_floats_;
    }
    return 0;
  };
  const auto inside = [&](const View& view) {
    return view.first() >= 0 && view.end() <= size_of(view);
  };
  const bool writable =
      call.write.storage == Storage::arena || call.write.storage == Storage::output;
  bool sound = writable && inside(call.write);
  for (const View& read : call.reads) sound = sound && (!read.present() || inside(read));
  if (!sound)
    refuse("network " + name_ + ", " + call.name + " leaves its memory");
}

void Network::order_tasks() {
  for (std::size_t later = 0; later < tasks_.size(); ++later)
    for (std::size_t earlier = 0; earlier < later; ++earlier) {
      bool needed = false;
      for (std::size_t i = tasks_[earlier].first_call; i < tasks_[earlier].end_call && !needed; ++i)
        for (std::size_t j = tasks_[later].first_call; j < tasks_[later].end_call && !needed; ++j)
          needed = ordered(calls_[i], calls_[j]);
      if (needed) {
        tasks_[later].needs.push_back(earlier);
        tasks_[earlier].readers.push_back(later);
      }
    }
}

void Network::finish() { order_tasks(); }

const Prepared& Network::prepared(const std::string& kernels, bool own_layouts) const {
  const bool library = uses_library(kernels);
  const std::lock_guard<std::mutex> lock(prepared_mutex_);
  auto& entry = prepared_[{library, own_layouts && library}];
  if (!entry) entry = std::make_unique<const Prepared>(*this, library, own_layouts && library);
  return *entry;
}

}  // namespace nnstretch
