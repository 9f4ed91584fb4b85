#include "nnstretch/session.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "c_call.hpp"
#include "compute.hpp"
#include "vendor.hpp"

namespace nnstretch {
namespace {

using Floats = std::unique_ptr<float, void (*)(float*)>;

bool reads_from(const nns_call& reader, const nns_tensor& written) {
  for (int i = 0; i < reader.reads_count; ++i)
    if (overlap(reader.reads[i], written)) return true;
  return false;
}

bool ordered(const nns_call& earlier, const nns_call& later) {
  return overlap(earlier.write, later.write) || reads_from(later, earlier.write) ||
         reads_from(earlier, later.write);
}

void compute_on_host(const Operation& operation, const nns_call& call, float* scratch) {
  kernels::Tensor reads[NNS_MOST_READS];
  for (int i = 0; i < call.reads_count; ++i) reads[i] = tensor_of(call.reads[i]);
  Floats packed(nullptr, free_floats);
  if (const auto* conv = std::get_if<Conv2d>(&operation)) {
    const std::size_t floats = kernels::table().packed_floats(*conv, reads[1]);
    if (floats > 0) {
      packed.reset(allocate_floats(floats));
      kernels::table().pack(*conv, reads[1], packed.get());
    }
  }
  compute_tensors(operation, {reads, call.reads_count}, tensor_of(call.write), packed.get(),
                  scratch);
}

// A call on memory of its own: what it will read may be written just now.
double host_cost_us(const Operation& operation, nns_call call) {
  constexpr int kTurns = 3;
  std::vector<Floats> memory;
  const auto replace = [&](nns_tensor& tensor) {
    if (!tensor.data) return;
    memory.emplace_back(allocate_floats(extent(tensor)), free_floats);
    std::fill_n(memory.back().get(), extent(tensor), 0.0F);
    tensor.data = memory.back().get();
  };
  for (int i = 0; i < call.reads_count; ++i) replace(call.reads[i]);
  replace(call.write);
  const Floats scratch(allocate_floats(kernels::kScratchFloats), free_floats);
  double least_us = kNever;
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto start = std::chrono::steady_clock::now();
    compute_on_host(operation, call, scratch.get());
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    least_us = std::min(least_us, took.count());
  }
  return std::max(least_us, 0.001);
}

}  // namespace

Session::Session(Runtime& runtime, CostTable costs, bool measure, std::size_t most_calls,
                 std::size_t first_job)
    : runtime_(runtime),
      costs_(std::move(costs)),
      measure_(measure),
      first_job_(first_job),
      slots_(most_calls) {
  for (Slot& slot : slots_) slot.readers.reserve(most_calls);
}

CostRow Session::measured(const Operation& operation, const nns_call& call,
                          const std::string& key) const {
  const auto entry = costs_.find(key);
  const std::vector<ElementOptions>& elements = runtime_.options().elements;
  CostRow row;
  double host_us = kNever;
  for (const ElementOptions& element : elements) {
    double cost_us = kNever;
    if (entry != costs_.end() && entry->second.count(element.type) > 0 && supports(element, call))
      cost_us = entry->second.at(element.type);
    else if (measure_ && element.type == "cpu" && !element.vendor)
      cost_us = host_us = host_us < kNever ? host_us : host_cost_us(operation, call);
    row.push_back(cost_us);
  }
  if (std::all_of(row.begin(), row.end(), [](double us) { return us == kNever; }))
    refuse("no cost of " + key + " on any element, measure it with --profile");
  return row;
}

std::size_t Session::kind_of(const Operation& operation, const nns_call& call) {
  const std::string key = signature(call_of(operation, call));
  const std::lock_guard<std::mutex> lock(kinds_mutex_);
  const auto known = kinds_.find(key);
  if (known != kinds_.end()) return known->second;
  CostRow row = measured(operation, call, key);
  const std::lock_guard<std::mutex> runtime_lock(runtime_.mutex_);
  runtime_.costs_.add(key, std::move(row));
  return kinds_[key] = runtime_.costs_.kinds() - 1;
}

Session::Slot* Session::free_slot() {
  const auto slot =
      std::find_if(slots_.begin(), slots_.end(), [](const Slot& entry) { return !entry.open; });
  return slot == slots_.end() ? nullptr : &*slot;
}

Job Session::job_of(const Slot& slot) const {
  Job job;
  job.id = first_job_ + static_cast<std::size_t>(&slot - slots_.data());
  job.kind = slot.kind;
  job.request = job.order = slot.number;
  return job;
}

// A call waits for every open one whose order with it can be seen in memory.
void Session::order(Slot& slot) {
  slot.unmet = 0;
  slot.readers.clear();
  for (Slot& earlier : slots_) {
    if (!earlier.open || &earlier == &slot || !ordered(earlier.call, slot.call)) continue;
    earlier.readers.push_back(static_cast<std::size_t>(&slot - slots_.data()));
    ++slot.unmet;
  }
}

std::uint64_t Session::enqueue(const nns_call& call, bool wait_for_place) {
  const Operation operation = operation_of(call);
  const std::size_t kind = kind_of(operation, call);
  std::unique_lock<std::mutex> lock(runtime_.mutex_);
  Slot* slot = nullptr;
  while (true) {
    if (runtime_.closing_ || !runtime_.loop_)
      throw Error(Status::closed, "the runtime is closed, or was not started");
    slot = free_slot();
    if (slot) break;
    if (!wait_for_place)
      throw Error(Status::queue_full, "all " + std::to_string(slots_.size()) + " places are taken");
    ended_.wait(lock);
  }
  slot->call = call;
  slot->operation = operation;
  slot->kind = kind;
  slot->number = ++calls_;
  slot->status = Status::ok;
  slot->open = true;
  order(*slot);
  const std::uint64_t ticket = slot->number;
  if (slot->unmet == 0) {
    runtime_.loop_->add(job_of(*slot));
    runtime_.dispatch();
  }
  return ticket;
}

bool Session::wait(std::uint64_t ticket, Status& status, double timeout_us) {
  if (std::isnan(timeout_us)) refuse("the time to wait is no number");
  std::unique_lock<std::mutex> lock(runtime_.mutex_);
  if (ticket == 0 || ticket > calls_) refuse("this is no ticket");
  const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                 [&](const Slot& entry) { return entry.number == ticket; });
  status = failed_;  // Of a call whose place was taken again only this is known.
  if (slot == slots_.end()) return true;
  const auto over = [&] { return slot->number != ticket || !slot->open; };
  if (timeout_us < 0) {
    ended_.wait(lock, over);
  } else {
    const auto limit = std::chrono::duration<double, std::micro>(std::min(timeout_us, 1e12));
    if (!ended_.wait_for(lock, limit, over)) return false;
  }
  status = slot->number == ticket ? slot->status : failed_;
  return true;
}

Status Session::finish() {
  std::unique_lock<std::mutex> lock(runtime_.mutex_);
  ended_.wait(lock, [&] {
    return std::none_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.open; });
  });
  return std::exchange(failed_, Status::ok);
}

void Session::compute(std::size_t element, const Slot& slot) const {
  if (runtime_.options().elements[element].vendor)
    run_once(runtime_.options().elements[element], slot.call);
  else
    compute_on_host(slot.operation, slot.call, runtime_.scratch_[element].get());
}

void Session::run(std::unique_lock<std::mutex>& lock, std::size_t element, const Job& job) {
  Slot& slot = slots_[job.id - first_job_];
  const double start_us = runtime_.now_us();
  lock.unlock();
  const std::string failure =
      runtime_.attempt(element, job.kind, start_us, [&] { compute(element, slot); });
  lock.lock();
  const double end_us = runtime_.now_us();
  if (!failure.empty())
    runtime_.failure_ = failure;
  else if (runtime_.options().correct_costs)
    runtime_.costs_.observe(job.kind, element, start_us, end_us);
  runtime_.loop_->end(job, element, end_us);
  complete(slot, failure.empty() ? Status::ok : Status::failed);
  runtime_.dispatch();
}

// What reads of a call that failed fails, too.
void Session::complete(Slot& slot, Status status) {
  if (slot.status == Status::ok) slot.status = status;
  if (failed_ == Status::ok) failed_ = slot.status;
  slot.open = false;
  for (const std::size_t index : slot.readers) {
    Slot& reader = slots_[index];
    if (!reader.open) continue;
    if (slot.status != Status::ok) reader.status = slot.status;
    if (--reader.unmet > 0) continue;
    if (reader.status == Status::ok)
      runtime_.loop_->add(job_of(reader));
    else
      complete(reader, reader.status);
  }
  ended_.notify_all();
}

void Session::close() {
  for (Slot& slot : slots_)
    if (slot.open && runtime_.loop_->withdraw(job_of(slot), runtime_.now_us())) {
      slot.status = Status::cancelled;
      slot.open = false;
    }
  ended_.notify_all();
}

}  // namespace nnstretch
