#include "nnstretch/runtime.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <utility>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include "cost_table.hpp"
#include "kernels/kernels.hpp"
#include "library.hpp"
#include "prepared.hpp"
#include "session.hpp"
#include "vendor.hpp"

namespace nnstretch {

enum class Phase : std::uint8_t { free, running, stopping, ended };

// One inference that may be under way: its memory, and what of it has been done.
struct Runtime::Place {
  std::size_t network = 0;
  std::size_t first_job = 0;
  std::size_t first_kind = 0;
  std::uint64_t number = 0;
  std::uint64_t first_order = 0;
  Phase phase = Phase::free;
  Status status = Status::ok;
  double deadline_us = kNever;
  std::size_t priority = 0;
  std::vector<const float*> inputs;
  std::vector<float*> outputs;
  std::unique_ptr<float, void (*)(float*)> arena{nullptr, free_floats};
  std::vector<std::size_t> unmet;  // Needs of each task that have not ended.
  std::size_t remaining = 0;       // Tasks that have not ended.
  std::size_t computing = 0;       // Tasks that elements have been handed.
  std::condition_variable ended;
};

struct Runtime::Opened {
  std::shared_ptr<const Network> network;
  std::size_t first_place = 0;
  std::size_t places = 0;
  std::vector<std::unique_ptr<VendorCalls>> vendors;  // By element, null for the host.
  const Prepared* prepared = nullptr;                 // How the host computes.
};

namespace {

void pin(int core) {
#if defined(__linux__)
  if (core < 0 || core >= CPU_SETSIZE) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(core), &set);
  // A core that is not there leaves the thread where the system wants it.
  (void)pthread_setaffinity_np(pthread_self(), sizeof set, &set);
#else
  (void)core;
#endif
}

double steady_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

// The system wakes a sleeper late, so the last part is waited for awake.
void wait_until(double until_us) {
  const double wait_us = until_us - steady_us();
  if (wait_us > 200.0)
    std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(wait_us - 150.0));
  while (steady_us() < until_us) std::this_thread::yield();
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
    throw Error(Status::bad_input, "unknown policy " + options.policy + ", the closest is " +
                                       closest_name(options.policy, known));
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
  for (std::size_t i = 0; i < options_.elements.size(); ++i) {
    scratch_.push_back(allocate_floats(kernels::kScratchFloats));
    wake_.push_back(std::make_unique<std::condition_variable>());
  }
  scratch_floats_ = kernels::kScratchFloats;
  spans_.reserve(options_.trace_spans);
}

Runtime::~Runtime() {
  close();
  for (float* memory : scratch_) free_floats(memory);
}

std::size_t Runtime::open(std::shared_ptr<const Network> network, std::size_t places,
                          std::vector<CostRow> costs) {
  const std::size_t tasks = network->tasks().size();
  if (loop_) throw Error(Status::bad_input, "networks are opened before start()");
  if (places == 0 || places > 4096)
    throw Error(Status::bad_input, "places are " + std::to_string(places) + ", 1 to 4096");
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
  for (std::size_t i = 0; i < places; ++i) {
    auto place = std::make_unique<Place>();
    place->network = networks_.size();
    place->first_job = owner_.size();
    place->first_kind = first_kind;
    place->inputs.resize(network->inputs().size());
    place->outputs.resize(network->outputs().size());
    place->arena.reset(allocate_floats(static_cast<std::size_t>(network->arena_floats())));
    place->unmet.resize(tasks);
    owner_.insert(owner_.end(), tasks, Owner{nullptr, places_.size()});
    places_.push_back(std::move(place));
  }
  networks_.push_back(std::move(opened));
  return networks_.size() - 1;
}

// Every element's working memory is as large as any call of any network wants it.
void Runtime::reserve_scratch(std::size_t floats) {
  if (floats <= scratch_floats_) return;
  for (float*& memory : scratch_) {
    float* larger = allocate_floats(floats);
    free_floats(memory);
    memory = larger;
  }
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

void Runtime::start() {
  if (loop_) throw Error(Status::bad_input, "it was started before");
  std::vector<std::string> types;
  for (const ElementOptions& element : options_.elements) types.push_back(element.type);
  const std::size_t jobs = std::max<std::size_t>(owner_.size(), 1);
  loop_ = std::make_unique<Loop>(types, costs_, options_.policy, options_.queueing, jobs,
                                 options_.priorities, [this](const Job& job) { drop(job); });
  for (std::size_t element = 0; element < options_.elements.size(); ++element)
    threads_.emplace_back([this, element] { work(element); });
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

bool Runtime::wait(const Ticket& ticket, Status& status, double timeout_us) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (ticket.place >= places_.size()) throw Error(Status::bad_input, "this is no ticket");
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
  place.phase = Phase::free;
  place.ended.notify_all();
  return true;
}

void Runtime::cancel(const Ticket& ticket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ticket.place >= places_.size()) return;
  Place& place = *places_[ticket.place];
  if (place.number != ticket.number || place.phase != Phase::running) return;
  stop_place(place, Status::cancelled);
  dispatch();
}

void Runtime::close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closing_) return;
    closing_ = true;
    for (const auto& place : places_)
      if (place->phase == Phase::running) stop_place(*place, Status::cancelled);
    for (const auto& session : sessions_)
      if (loop_) session->close();
    for (const auto& wake : wake_) wake->notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

std::vector<TaskSpan> Runtime::spans() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return spans_;
}

std::uint64_t Runtime::decisions() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return loop_ ? loop_->decisions() : 0;
}

std::string Runtime::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void Runtime::work(std::size_t element) {
  pin(options_.elements[element].core);
  const library::OneThread alone;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    Job job;
    if (loop_->hand_over(element, job)) {
      Session* session = owner_[job.id].session;
      if (session)
        session->run(lock, element, job);
      else
        run_task(lock, element, job);
    } else if (closing_) {
      return;
    } else {
      wake_[element]->wait(lock);
    }
  }
}

void Runtime::run_task(std::unique_lock<std::mutex>& lock, std::size_t element, const Job& job) {
  Place& place = place_of(job);
  const std::size_t task = job.id - place.first_job;
  const double start_us = now_us();
  ++place.computing;
  if (start_us > place.deadline_us && place.phase == Phase::running) {
    stop_place(place, Status::too_late);
  } else {
    lock.unlock();
    const std::string failure =
        attempt(element, job.kind, start_us, [&] { compute_task(place, element, task); });
    lock.lock();
    if (!failure.empty()) {
      failure_ = networks_[place.network].network->tasks()[task].name + ": " + failure;
      if (place.phase == Phase::running) stop_place(place, Status::failed);
    } else if (options_.correct_costs) {
      costs_.observe(job.kind, element, start_us, now_us());
    }
  }
  const double end_us = now_us();
  if (spans_.size() < options_.trace_spans)
    spans_.push_back({place.network, place.number, task, element, start_us, end_us});
  finish_task(place, element, job, end_us);
  dispatch();
}

// What the exception says that is being handled.
std::string Runtime::reason_of_failure(std::size_t element) const {
  const std::string& name = options_.elements[element].name;
  try {
    throw;
  } catch (const std::exception& error) {
    return *error.what() != '\0' ? error.what() : "element " + name + " failed";
  } catch (...) {
    return "element " + name + " threw something that is no exception";
  }
}

void Runtime::emulate(std::size_t element, std::size_t kind, double start_us) const {
  double least_us = 0.0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    least_us = costs_.quiet_us(kind, element);
  }
  wait_until(origin_us_ + start_us + least_us);
}

void Runtime::compute_task(Place& place, std::size_t element, std::size_t task) {
  const Opened& opened = networks_[place.network];
  const Memory memory{place.inputs.data(), place.outputs.data(), place.arena.get()};
  const Task& work = opened.network->tasks()[task];
  const VendorCalls* vendor = opened.vendors[element].get();
  for (std::size_t call = work.first_call; call < work.end_call; ++call)
    if (vendor)
      vendor->run(call, memory);
    else
      opened.prepared->compute(call, memory, scratch_[element]);
}

void Runtime::finish_task(Place& place, std::size_t element, const Job& job, double end_us) {
  loop_->end(job, element, end_us);
  --place.computing;
  --place.remaining;
  if (place.phase == Phase::running) {
    const std::size_t task = job.id - place.first_job;
    for (const std::size_t reader : networks_[place.network].network->tasks()[task].readers)
      if (--place.unmet[reader] == 0) loop_->add(job_of(place, reader));
  }
  const bool over = place.phase == Phase::running ? place.remaining == 0 : place.computing == 0;
  if (over) end_place(place, end_us);
}

void Runtime::dispatch() {
  loop_->dispatch(now_us());
  for (const std::size_t element : loop_->chosen()) wake_[element]->notify_one();
}

void Runtime::drop(const Job& job) {
  Place& place = place_of(job);
  if (place.phase == Phase::running) stop_place(place, Status::too_late);
}

void Runtime::stop_place(Place& place, Status status) {
  place.phase = Phase::stopping;
  place.status = status;
  for (std::size_t task = 0; task < place.unmet.size(); ++task)
    loop_->withdraw(job_of(place, task), now_us());
  if (place.computing == 0) end_place(place, now_us());
}

void Runtime::end_place(Place& place, double at_us) {
  if (place.phase == Phase::running && at_us > place.deadline_us) place.status = Status::too_late;
  place.phase = Phase::ended;
  place.ended.notify_all();
}

}  // namespace nnstretch
