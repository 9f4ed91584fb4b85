#include "nnstretch/session.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <utility>

#include "c_call.hpp"
#include "nnstretch/error.hpp"

namespace nnstretch {
namespace {

constexpr std::size_t kRemembered = 4096;  // Calls whose end is known where their place is not.

bool reads_from(const nns_call& reader, const nns_tensor& written) {
  for (int i = 0; i < reader.reads_count; ++i)
    if (overlap(reader.reads[i], written)) return true;
  return false;
}

bool ordered(const nns_call& earlier, const nns_call& later) {
  return overlap(earlier.write, later.write) || reads_from(later, earlier.write) ||
         reads_from(earlier, later.write);
}

// Whether all of a tensor is written, and with it all that earlier calls left there.
bool covers(const nns_tensor& write, const nns_tensor& read) {
  if (!read.data) return false;
  std::size_t elements = 1;
  for (int axis = 0; axis < write.rank; ++axis)
    elements *= static_cast<std::size_t>(write.sizes[axis]);
  const auto from = reinterpret_cast<std::uintptr_t>(write.data);
  const auto start = reinterpret_cast<std::uintptr_t>(read.data);
  return elements == extent(write) && from <= start &&
         start + extent(read) * sizeof(float) <= from + elements * sizeof(float);
}

// Tensors that are absent are so in every member: elements of vendors look at sizes.
nns_call without_absent(nns_call call) {
  for (int i = 0; i < NNS_MOST_READS; ++i)
    if (i >= call.reads_count || !call.reads[i].data) call.reads[i] = nns_absent();
  return call;
}

}  // namespace

Session::Session(Runtime& runtime, CostTable costs, bool measure, std::size_t most_calls,
                 std::size_t first_job)
    : runtime_(runtime),
      costs_(std::move(costs)),
      measure_(measure),
      first_job_(first_job),
      slots_(most_calls),
      last_(kRemembered) {
  for (Slot& slot : slots_) slot.followers.reserve(most_calls);
}

Session::Awaiting::Awaiting(Slot& slot) : slot_(&slot), outcome_(slot.outcome) {
  if (!slot.open) {
    slot_ = nullptr;
    return;
  }
  next_ = slot.awaiting;
  slot.awaiting = this;
}

Session::Awaiting::~Awaiting() {
  if (!slot_) return;
  Awaiting** place = &slot_->awaiting;
  while (*place != this) place = &(*place)->next_;
  *place = next_;
}

void Session::Awaiting::end(const Outcome& outcome) {
  slot_->awaiting = next_;
  slot_ = nullptr;
  outcome_ = outcome;
}

Status Session::told(const Outcome& outcome, std::string* failure) {
  if (failure) *failure = outcome.failure;
  return outcome.status;
}

Session::Slot* Session::free_slot() {
  const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                 [](const Slot& entry) { return !entry.open; });
  return slot == slots_.end() ? nullptr : &*slot;
}

Job Session::job_of(const Slot& slot) const {
  Job job;
  job.id = first_job_ + static_cast<std::size_t>(&slot - slots_.data());
  job.kind = slot.kind;
  job.request = job.order = slot.number;
  return job;
}

// A call waits for every open one whose order with it can be seen in memory, and reads of those
// that wrote last what it reads.
void Session::order(Slot& slot) {
  std::uint64_t last_writer[NNS_MOST_READS] = {};
  for (const Slot& earlier : slots_)
    for (int i = 0; earlier.open && &earlier != &slot && i < slot.call.reads_count; ++i)
      if (covers(earlier.call.write, slot.call.reads[i]))
        last_writer[i] = std::max(last_writer[i], earlier.number);
  slot.unmet = 0;
  slot.followers.clear();
  for (Slot& earlier : slots_) {
    if (!earlier.open || &earlier == &slot || !ordered(earlier.call, slot.call)) continue;
    Follower follower{static_cast<std::uint32_t>(&slot - slots_.data()), false};
    for (int i = 0; i < slot.call.reads_count; ++i)
      if (earlier.number >= last_writer[i] && overlap(slot.call.reads[i], earlier.call.write))
        follower.reads = true;
    earlier.followers.push_back(follower);
    ++slot.unmet;
  }
}

// With the runtime's lock when it returns.
Session::Slot& Session::begin(std::unique_lock<std::mutex>& lock, const nns_call& call,
                              bool wait_for_place) {
  const Operation operation = operation_of(call);
  const nns_call sound = without_absent(call);
  const std::size_t kind = kind_of(operation, sound);
  lock.lock();
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
  slot->call = sound;
  slot->operation = operation;
  slot->kind = kind;
  slot->number = ++calls_;
  slot->outcome = {};
  slot->open = true;
  order(*slot);
  if (slot->unmet == 0) {
    runtime_.loop_->add(job_of(*slot));
    runtime_.dispatch();
  }
  return *slot;
}

std::uint64_t Session::enqueue(const nns_call& call) {
  std::unique_lock<std::mutex> lock(runtime_.mutex_, std::defer_lock);
  return begin(lock, call, false).number;
}

Status Session::carry_out(const nns_call& call, std::string* failure) {
  std::unique_lock<std::mutex> lock(runtime_.mutex_, std::defer_lock);
  Slot& slot = begin(lock, call, true);
  const Awaiting awaiting(slot);
  ended_.wait(lock, [&] { return awaiting.ended(); });
  return told(awaiting.outcome(), failure);
}

bool Session::wait(std::uint64_t ticket, Status& status, double timeout_us,
                   std::string* failure) {
  if (std::isnan(timeout_us)) refuse("the time to wait is no number");
  std::unique_lock<std::mutex> lock(runtime_.mutex_);
  if (ticket == 0 || ticket > calls_) refuse("this is no ticket");
  const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                 [&](const Slot& entry) { return entry.number == ticket; });
  if (slot == slots_.end()) {
    const Ended& ended = last_[ticket % kRemembered];
    status = told(ended.number == ticket ? ended.outcome : failed_, failure);
    return true;
  }
  const Awaiting awaiting(*slot);
  const auto over = [&] { return awaiting.ended(); };
  if (timeout_us < 0) {
    ended_.wait(lock, over);
  } else {
    const auto limit = std::chrono::duration<double, std::micro>(std::min(timeout_us, 1e12));
    if (!ended_.wait_for(lock, limit, over)) return false;
  }
  status = told(awaiting.outcome(), failure);
  return true;
}

Status Session::finish(std::string* failure) {
  std::unique_lock<std::mutex> lock(runtime_.mutex_);
  ended_.wait(lock, [&] {
    return std::none_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.open; });
  });
  return told(std::exchange(failed_, Outcome()), failure);
}

void Session::run(std::unique_lock<std::mutex>& lock, std::size_t element, const Job& job) {
  Slot& slot = slots_[job.id - first_job_];
  const double start_us = runtime_.now_us();
  lock.unlock();
  const std::string failure =
      runtime_.attempt(element, job.kind, start_us, [&] { compute(element, slot); });
  lock.lock();
  const double end_us = runtime_.now_us();
  if (failure.empty() && runtime_.options().correct_costs)
    runtime_.costs_.observe(job.kind, element, start_us, end_us);
  runtime_.loop_->end(job, element, end_us);
  complete(slot, {failure.empty() ? Status::ok : Status::failed, failure});
  runtime_.dispatch();
}

// What reads of a call that failed fails, too; what only waited for it does not.
void Session::complete(Slot& slot, const Outcome& outcome) {
  if (slot.outcome.status == Status::ok) slot.outcome = outcome;
  if (failed_.status == Status::ok) failed_ = slot.outcome;
  end(slot);
  for (const Follower& follower : slot.followers) {
    Slot& later = slots_[follower.slot];
    if (!later.open) continue;
    if (slot.outcome.status != Status::ok && follower.reads) later.outcome = slot.outcome;
    if (--later.unmet > 0) continue;
    if (later.outcome.status == Status::ok)
      runtime_.loop_->add(job_of(later));
    else
      complete(later, later.outcome);
  }
  ended_.notify_all();
}

void Session::end(Slot& slot) {
  slot.open = false;
  while (slot.awaiting) slot.awaiting->end(slot.outcome);
  Ended& ended = last_[slot.number % kRemembered];
  if (ended.number < slot.number) ended = {slot.number, slot.outcome};
}

void Session::close() {
  for (Slot& slot : slots_)
    if (slot.open && runtime_.loop_->withdraw(job_of(slot), runtime_.now_us())) {
      slot.outcome = {Status::cancelled, ""};
      if (failed_.status == Status::ok) failed_ = slot.outcome;
      end(slot);
    }
  ended_.notify_all();
}

}  // namespace nnstretch
