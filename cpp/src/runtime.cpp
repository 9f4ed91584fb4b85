#include "nnstretch/runtime.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "kernels/kernels.hpp"
#include "library.hpp"
#include "nnstretch/costs.hpp"
#include "nnstretch/session.hpp"
#include "places.hpp"
#include "prepared.hpp"
#include "vendor.hpp"

namespace nnstretch {

namespace {

double steady_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

using Floats = std::unique_ptr<float, void (*)(float*)>;

// Touched now: the system would map page after page within the first inference.
Floats touched_floats(std::size_t count) {
  Floats memory(allocate_floats(count), free_floats);
  std::fill_n(memory.get(), count, 0.0F);
  return memory;
}

// Working memory of one inference, of as many as may be under way.
Floats arena_of(const Network& network, std::size_t places) {
  const auto floats = static_cast<std::size_t>(network.arena_floats());
  try {
    if (!fits_memory(static_cast<double>(floats) * static_cast<double>(places)))
      throw Error(Status::no_memory, "more than the machine has");
    return touched_floats(floats);
  } catch (const Error&) {
    throw Error(Status::no_memory, "no memory for " + std::to_string(places) + " inferences of " +
                                       network.name() + " at once, each works in " +
                                       std::to_string(floats * sizeof(float)) + " bytes");
  }
}

void check(const RuntimeOptions& options) {
  if (options.elements.empty() || options.elements.size() > 64)
    throw Error(Status::bad_input, "there are " + std::to_string(options.elements.size()) +
                                       " elements, 1 to 64 are possible");
  for (std::size_t i = 0; i < options.elements.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (options.elements[i].name == options.elements[j].name)
        throw Error(Status::bad_input, "two elements are named " + options.elements[i].name);
  if (options.priorities == 0 || options.priorities > 64)
    throw Error(Status::bad_input, std::to_string(options.priorities) +
                                       " classes of priority, 1 to 64 are possible");
  const auto& known = policy_names();
  if (std::find(known.begin(), known.end(), options.policy) == known.end())
    throw Error(Status::bad_input, "unknown policy " + options.policy +
                                       suggestion(options.policy, known));
  (void)uses_library(options.kernels);
}

}  // namespace

bool host_only(const std::vector<ElementOptions>& elements) {
  return std::none_of(elements.begin(), elements.end(),
                      [](const ElementOptions& element) { return element.vendor != nullptr; });
}

Runtime::Runtime(RuntimeOptions options)
    : options_(std::move(options)), origin_us_(steady_us()) {
  check(options_);
  units_ = std::make_unique<ReservedUnits>(options_.elements);
  scratch_.reserve(options_.elements.size());
  for (std::size_t i = 0; i < options_.elements.size(); ++i) {
    scratch_.push_back(touched_floats(kernels::kScratchFloats));
    wake_.push_back(std::make_unique<std::condition_variable>());
  }
  scratch_floats_ = kernels::kScratchFloats;
  spans_.reserve(options_.trace_spans);
}

Runtime::~Runtime() { close(); }

void Runtime::check_opening(std::size_t places) const {
  if (loop_) refuse("networks are opened before start()");
  if (places == 0 || places > 4096) refuse("places are " + std::to_string(places) + ", 1 to 4096");
}

std::size_t Runtime::open(std::shared_ptr<const Network> network, std::size_t places,
                          std::vector<CostRow> costs) {
  check_opening(places);
  if (network == nullptr) refuse("the network is null");
  const std::size_t tasks = network->tasks().size();
  if (costs.size() != tasks)
    throw Error(Status::bad_input, std::to_string(costs.size()) + " rows of costs for " +
                                       std::to_string(tasks) + " tasks of " + network->name());
  const std::size_t first_kind = costs_.kinds();
  for (std::size_t task = 0; task < tasks; ++task) {
    if (costs[task].size() != options_.elements.size())
      throw Error(Status::bad_input, "costs of " + network->tasks()[task].name + " are for " +
                                         std::to_string(costs[task].size()) + " elements of " +
                                         std::to_string(options_.elements.size()));
    costs_.add(network->tasks()[task].name, std::move(costs[task]));
  }
  Opened opened{network, places_.size(), places, {}, nullptr};
  opened.prepared = &network->prepared(options_.kernels, host_only(options_.elements));
  reserve_scratch(opened.prepared->scratch_floats());
  for (const ElementOptions& element : options_.elements) {
    const bool host = element.vendor == nullptr;
    opened.vendors.push_back(host ? nullptr : std::make_unique<VendorCalls>(*network, element));
  }
  // All of them or none: what was allocated for some is free again where there is no room for all.
  std::vector<std::unique_ptr<Place>> opening;
  for (std::size_t i = 0; i < places; ++i) {
    auto place = std::make_unique<Place>();
    place->network = networks_.size();
    place->first_job = owner_.size() + i * tasks;
    place->first_kind = first_kind;
    place->inputs.resize(network->inputs().size());
    place->outputs.resize(network->outputs().size());
    place->arena = arena_of(*network, places);
    place->unmet.resize(tasks);
    opening.push_back(std::move(place));
  }
  for (std::unique_ptr<Place>& place : opening) {
    owner_.insert(owner_.end(), tasks, Owner{nullptr, places_.size()});
    places_.push_back(std::move(place));
  }
  networks_.push_back(std::move(opened));
  return networks_.size() - 1;
}

// Every element's working memory is as large as any call of any network wants it.
void Runtime::reserve_scratch(std::size_t floats) {
  if (floats <= scratch_floats_) return;
  for (auto& memory : scratch_) memory = touched_floats(floats);
  scratch_floats_ = floats;
}

Session& Runtime::open_session(const std::string& costs, std::size_t most_calls) {
  if (loop_) throw Error(Status::bad_input, "sessions are opened before start()");
  if (most_calls == 0 || most_calls > 4096)
    throw Error(Status::bad_input, "calls are " + std::to_string(most_calls) + ", 1 to 4096");
  CostTable table = costs.empty() ? CostTable() : read_costs(costs);
  sessions_.push_back(std::make_unique<Session>(*this, std::move(table), costs.empty(), most_calls,
                                                owner_.size()));
  owner_.insert(owner_.end(), most_calls, Owner{sessions_.back().get(), 0});
  return *sessions_.back();
}

const Network& Runtime::network(std::size_t number) const {
  if (number >= networks_.size())
    throw Error(Status::bad_input, "there is no network " + std::to_string(number));
  return *networks_[number].network;
}

double Runtime::now_us() const { return steady_us() - origin_us_; }

Job Runtime::job_of(const Place& place, std::size_t task) const {
  Job job;
  job.id = place.first_job + task;
  job.kind = place.first_kind + task;
  job.deadline_us = place.deadline_us;
  job.request = place.number;
  job.order = place.first_order + task;
  job.priority = place.priority;
  return job;
}

Ticket Runtime::submit(std::size_t network, const float* const* inputs, float* const* outputs,
                       const SubmitOptions& options) {
  if (!(options.deadline_us >= 0))
    throw Error(Status::bad_input, "the deadline is no time from now on");
  if (options.priority >= options_.priorities)
    throw Error(Status::bad_input, "priority " + std::to_string(options.priority) + ", there are " +
                                       std::to_string(options_.priorities) + " classes");
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closing_ || !loop_) throw Error(Status::closed, "the runtime is closed, or was not started");
  (void)this->network(network);
  const Opened& opened = networks_[network];
  for (std::size_t i = 0; i < opened.places; ++i) {
    Place& place = *places_[opened.first_place + i];
    if (place.phase != Phase::free) continue;
    const std::vector<Task>& tasks = opened.network->tasks();
    std::copy_n(inputs, place.inputs.size(), place.inputs.begin());
    std::copy_n(outputs, place.outputs.size(), place.outputs.begin());
    place.number = ++submitted_;
    place.first_order = submitted_tasks_;
    submitted_tasks_ += tasks.size();
    place.phase = Phase::running;
    place.status = Status::ok;
    place.deadline_us = now_us() + options.deadline_us;
    place.priority = options.priority;
    place.remaining = tasks.size();
    for (std::size_t task = 0; task < tasks.size(); ++task) {
      place.unmet[task] = tasks[task].needs.size();
      if (place.unmet[task] == 0) loop_->add(job_of(place, task));
    }
    if (tasks.empty()) end_place(place, now_us());
    dispatch();
    return {opened.first_place + i, place.number};
  }
  throw Error(Status::queue_full, "all " + std::to_string(opened.places) + " places of " +
                                      opened.network->name() + " are taken");
}

void Runtime::check_ticket(const Ticket& ticket) const {
  if (ticket.place >= places_.size() || ticket.number == 0 || ticket.number > submitted_)
    refuse("this is no ticket");
}

bool Runtime::wait(const Ticket& ticket, Status& status, double timeout_us,
                   std::string* failure) {
  if (std::isnan(timeout_us)) refuse("the time to wait is no number");
  std::unique_lock<std::mutex> lock(mutex_);
  check_ticket(ticket);
  Place& place = *places_[ticket.place];
  if (place.number != ticket.number || place.phase == Phase::free)
    throw Error(Status::bad_input, "this ticket was waited for before");
  const auto over = [&] {
    return place.number != ticket.number || place.phase == Phase::ended ||
           place.phase == Phase::free;
  };
  if (timeout_us < 0) {
    place.ended.wait(lock, over);
  } else {
    const double bounded_us = std::min(timeout_us, 1e12);
    const auto limit = std::chrono::duration<double, std::micro>(bounded_us);
    if (!place.ended.wait_for(lock, limit, over)) return false;
  }
  if (place.number != ticket.number || place.phase != Phase::ended)
    throw Error(Status::bad_input, "this ticket was waited for before");
  status = place.status;
  if (failure) *failure = std::move(place.failure);
  place.failure.clear();
  place.phase = Phase::free;
  place.ended.notify_all();
  return true;
}

void Runtime::cancel(const Ticket& ticket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  check_ticket(ticket);
  Place& place = *places_[ticket.place];
  if (place.number != ticket.number || place.phase != Phase::running) return;
  stop_place(place, Status::cancelled);
  dispatch();
}

std::vector<TaskSpan> Runtime::spans() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return spans_;
}

std::uint64_t Runtime::tasks_run() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return tasks_run_;
}

std::uint64_t Runtime::decisions() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return loop_ ? loop_->decisions() : 0;
}

}  // namespace nnstretch
