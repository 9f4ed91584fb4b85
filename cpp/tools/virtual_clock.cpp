#include "virtual_clock.hpp"

#include <algorithm>
#include <utility>

#include "nnstretch/error.hpp"

namespace nnstretch {

VirtualClock::VirtualClock(const Workload& workload)
    : workload_(workload), free_us_(workload.element_types.size(), 0.0) {
  for (std::size_t kind = 0; kind < workload.costs_us.size(); ++kind)
    costs_.add(workload.kind_names[kind], workload.costs_us[kind]);
  const std::size_t applications = workload.applications.size();
  arrived_.resize(applications);
  open_.resize(applications);
  free_rooms_.resize(applications);
  std::size_t tasks = 0;
  for (std::size_t i = 0; i < applications; ++i) {
    const WorkloadApplication& application = workload.applications[i];
    tasks += application.arrivals_us.size() * application.tasks.size();
    // A dropped instance keeps its room until what runs of it has ended.
    for (std::size_t n = 0; n < application.arrivals_us.size(); ++n) {
      Room room;
      room.application = i;
      room.first_job = room_of_.size();
      room.unmet.resize(application.tasks.size());
      room_of_.insert(room_of_.end(), application.tasks.size(), rooms_.size());
      free_rooms_[i].push_back(rooms_.size());
      rooms_.push_back(std::move(room));
    }
    std::reverse(free_rooms_[i].begin(), free_rooms_[i].end());
  }
  loop_ = std::make_unique<Loop>(workload.element_types, costs_, workload.policy,
                                 workload.queueing, std::max<std::size_t>(tasks, 1),
                                 workload.classes, [this](const Job& job) {
                                   ++dropped_;
                                   close(rooms_[room_of_[job.id]]);
                                 });
  spans_.reserve(tasks);
}

void VirtualClock::run() {
  for (std::size_t i = 0; i < workload_.applications.size(); ++i) next_arrival(i);
  while (true) {
    if (ahead_.empty() || ahead_.front().at_us > now_us_) dispatch();
    if (ahead_.empty()) break;
    std::pop_heap(ahead_.begin(), ahead_.end());
    const Event event = ahead_.back();
    ahead_.pop_back();
    now_us_ = event.at_us;
    if (event.arrival) {
      arrive(event.index);
      next_arrival(event.index);
    } else {
      end(event);
    }
  }
  if (open_count_ > 0)
    throw Error(Status::bad_input, std::to_string(open_count_) +
                                       " instances are open, workload, nothing can end them");
}

void VirtualClock::push(Event event) {
  event.number = ++pushed_;
  ahead_.push_back(std::move(event));
  std::push_heap(ahead_.begin(), ahead_.end());
}

void VirtualClock::next_arrival(std::size_t application) {
  const std::vector<double>& times_us = workload_.applications[application].arrivals_us;
  if (arrived_[application] == times_us.size()) return;
  Event event;
  event.at_us = std::max(times_us[arrived_[application]++], now_us_);
  event.arrival = true;
  event.index = application;
  push(std::move(event));
}

void VirtualClock::arrive(std::size_t number) {
  const WorkloadApplication& application = workload_.applications[number];
  if (open_[number] >= application.queue_limit) {
    ++refused_;
    return;
  }
  ++open_[number];
  ++open_count_;
  Room& room = rooms_[free_rooms_[number].back()];
  free_rooms_[number].pop_back();
  room.instance = ++instances_;
  room.first_order = added_;
  room.deadline_us = now_us_ + application.deadline_us;
  room.open = true;
  room.remaining = application.tasks.size();
  added_ += application.tasks.size();
  for (std::size_t task = 0; task < application.tasks.size(); ++task) {
    room.unmet[task] = application.tasks[task].needs;
    if (room.unmet[task] == 0) loop_->add(job_of(room, task));
  }
}

Job VirtualClock::job_of(const Room& room, std::size_t task) const {
  const WorkloadApplication& application = workload_.applications[room.application];
  Job job;
  job.id = room.first_job + task;
  job.kind = application.tasks[task].kind;
  job.deadline_us = room.deadline_us;
  job.request = room.instance;
  job.order = room.first_order + task;
  job.priority = application.priority;
  return job;
}

void VirtualClock::dispatch() {
  for (const std::size_t element : freed_) hand_over(element);
  freed_.clear();
  loop_->dispatch(now_us_);
  for (const std::size_t element : loop_->chosen()) hand_over(element);
}

void VirtualClock::hand_over(std::size_t element) {
  Event event;
  if (!loop_->hand_over(element, event.job)) return;
  event.start_us = std::max(free_us_[element], now_us_);
  event.at_us = event.start_us + workload_.times_us[event.job.kind][element];
  event.index = element;
  free_us_[element] = event.at_us;
  ++rooms_[room_of_[event.job.id]].computing;
  push(std::move(event));
}

void VirtualClock::end(const Event& event) {
  Room& room = rooms_[room_of_[event.job.id]];
  const std::size_t task = event.job.id - room.first_job;
  freed_.push_back(event.index);
  loop_->end(event.job, event.index, event.at_us);
  // What ends unheard was not wanted any more: it says nothing about costs.
  if (workload_.correction && room.open)
    costs_.observe(event.job.kind, event.index, event.start_us, event.at_us);
  spans_.push_back(
      {room.application, room.instance, task, event.index, event.start_us, event.at_us});
  --room.computing;
  --room.remaining;
  if (!room.open) return leave(room);
  for (const std::size_t reader : workload_.applications[room.application].tasks[task].readers)
    if (--room.unmet[reader] == 0) loop_->add(job_of(room, reader));
  if (room.remaining == 0) close(room);
}

// An instance is over: what of it was not handed over is withdrawn, what runs ends unheard.
void VirtualClock::close(Room& room) {
  room.open = false;
  --open_[room.application];
  --open_count_;
  for (std::size_t task = 0; room.remaining > 0 && task < room.unmet.size(); ++task)
    loop_->withdraw(job_of(room, task), now_us_);
  leave(room);
}

void VirtualClock::leave(Room& room) {
  if (room.computing > 0) return;
  free_rooms_[room.application].push_back(room_of_[room.first_job]);
}

}  // namespace nnstretch
