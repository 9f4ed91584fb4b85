// The threads of the elements: their start and end, what one does with a task, and what its end sets
// going.
#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

#include "library.hpp"
#include "nnstretch/runtime.hpp"
#include "nnstretch/session.hpp"
#include "places.hpp"
#include "start_thread.hpp"

namespace nnstretch {
namespace {

void pin(int core) {
#if defined(__linux__)
  if (core < 0 || core >= CPU_SETSIZE) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(core), &set);
  // 0 is this thread; Android has no pthread_setaffinity_np. A core that is not there leaves the
  // thread where the system wants it.
  (void)sched_setaffinity(0, sizeof set, &set);
#else
  (void)core;
#endif
}

}  // namespace

void Runtime::start() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closing_) throw Error(Status::closed, "the runtime is closed");
  }
  if (loop_) throw Error(Status::bad_input, "it was started before");
  std::vector<std::string> types;
  for (const ElementOptions& element : options_.elements) types.push_back(element.type);
  const std::size_t jobs = std::max<std::size_t>(owner_.size(), 1);
  loop_ = std::make_unique<Loop>(types, costs_, options_.policy, options_.queueing, jobs,
                                 options_.priorities, [this](const Job& job) { drop(job); });
  try {
    threads_.reserve(options_.elements.size());
    for (std::size_t element = 0; element < options_.elements.size(); ++element)
      threads_.push_back(start_thread("element " + options_.elements[element].name,
                                      [this, element] { work(element); }));
  } catch (...) {
    close();  // Whatever an element without a thread were given would never end.
    throw;
  }
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
  const double start_us = now_us();
  ++place.computing;
  // A task that is given up has no span, and its inference none as a whole.
  double end_us = start_us;
  if (start_us > place.deadline_us && place.phase == Phase::running)
    stop_place(place, Status::too_late);
  else
    end_us = run_in_time(lock, element, job, start_us);
  finish_task(place, element, job, end_us);
  dispatch();
}

double Runtime::run_in_time(std::unique_lock<std::mutex>& lock, std::size_t element, const Job& job,
                            double start_us) {
  Place& place = place_of(job);
  const std::size_t task = job.id - place.first_job;
  lock.unlock();
  const std::string failure =
      attempt(element, job.kind, start_us, [&] { compute_task(place, element, task); });
  lock.lock();
  const double end_us = now_us();
  if (!failure.empty()) {
    if (place.phase == Phase::running) {
      place.failure = networks_[place.network].network->tasks()[task].name + ": " + failure;
      stop_place(place, Status::failed);
    }
  } else if (options_.correct_costs && place.phase == Phase::running) {
    // What nobody waits for any more may have been computed beside others than usual.
    costs_.observe(job.kind, element, start_us, end_us);
  }
  ++tasks_run_;
  if (spans_.size() < options_.trace_spans)
    spans_.push_back({place.network, place.number, task, element, start_us, end_us});
  return end_us;
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
  // The system wakes a sleeper late, so the last part is waited for awake.
  const double wait_us = start_us + least_us - now_us();
  if (wait_us > 200.0)
    std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(wait_us - 150.0));
  while (now_us() < start_us + least_us) std::this_thread::yield();
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
      opened.prepared->compute(call, memory, scratch_[element].get());
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
