// The C interface of runtimes and networks: handles, statuses, and the last error of each thread.
#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "nnstretch/costs.hpp"
#include "nnstretch/error.hpp"
#include "nnstretch/model.hpp"
#include "nnstretch/runtime.hpp"
#include "nnstretch/session.hpp"
#include "runtime_options.hpp"
#include "trace.hpp"
#include "vendor.hpp"

struct nns_runtime {
  explicit nns_runtime(nnstretch::RuntimeOptions options) : runtime(std::move(options)) {}
  nnstretch::Runtime runtime;
  std::vector<std::unique_ptr<nns_session>> sessions;
};

struct nns_session {
  nnstretch::Session* session = nullptr;
};

namespace {

using namespace nnstretch;

thread_local std::string last_error;

nns_status status_of(Status status) { return static_cast<nns_status>(status); }

nns_status say(nns_status status, const char* words) noexcept {
  try {
    last_error = words;
  } catch (...) {
    last_error.clear();
  }
  return status;
}

// Whatever goes wrong becomes a status and a message.
template <typename Body>
nns_status guarded(const Body& body) noexcept {
  try {
    return body();
  } catch (const Error& error) {
    return say(status_of(error.status()), error.what());
  } catch (const std::bad_alloc&) {
    return say(NNS_NO_MEMORY, "no memory");
  } catch (const std::exception& error) {
    return say(NNS_FAILED, error.what());
  } catch (...) {
    return say(NNS_FAILED, "something was thrown that is no exception");
  }
}

void need(const void* pointer, const char* what) {
  if (!pointer) refuse(std::string(what) + " is NULL");
}

nns_status ended(Status status, const std::string& failure) {
  if (status == Status::ok) return NNS_OK;
  if (status == Status::failed) return say(NNS_FAILED, failure.c_str());
  if (status == Status::too_late) return say(NNS_TOO_LATE, "the deadline has passed");
  return say(status_of(status), "it was cancelled");
}

nns_status open_network(nns_runtime* runtime, const nns_model* model, Weights weights,
                        const char* costs, size_t places, size_t* number) {
  runtime->runtime.check_opening(places);  // Before seconds go into measuring.
  const auto shared = std::make_shared<Weights>(std::move(weights));
  const std::shared_ptr<const Network> network = model->make(shared);
  const RuntimeOptions& options = runtime->runtime.options();
  const CostTable table = costs ? read_costs(costs) : measure_costs(*network, options.elements, options.kernels, 3);
  std::vector<CostRow> rows = task_costs(*network, table, options.elements);
  if (options.policy == "planned") keep_placements(*network, options.elements, rows);
  *number = runtime->runtime.open(network, places, std::move(rows));
  return NNS_OK;
}

nns_status port_shape(const std::vector<Port>& ports, size_t index, nns_shape* shape) {
  need(shape, "shape");
  if (index >= ports.size())
    refuse("there is no port " + std::to_string(index));
  const Port& port = ports[index];
  *shape = {};
  shape->name = port.name.c_str();
  shape->rank = static_cast<std::int32_t>(port.shape.size());
  std::copy(port.shape.begin(), port.shape.end(), shape->sizes);
  return NNS_OK;
}

SubmitOptions submit_options(const nns_request* request) {
  SubmitOptions options;
  if (!request) return options;
  if (request->deadline_us != NNS_NEVER) options.deadline_us = request->deadline_us;
  options.priority = request->priority;
  return options;
}

Ticket submit(nns_runtime* runtime, size_t network, const float* const* inputs,
              float* const* outputs, const nns_request* request) {
  need(runtime, "runtime");
  need(inputs, "inputs");
  need(outputs, "outputs");
  const Network& opened = runtime->runtime.network(network);
  for (std::size_t i = 0; i < opened.inputs().size(); ++i) need(inputs[i], "an input");
  for (std::size_t i = 0; i < opened.outputs().size(); ++i) need(outputs[i], "an output");
  return runtime->runtime.submit(network, inputs, outputs, submit_options(request));
}

nns_status wait(nns_runtime* runtime, const Ticket& ticket, double timeout_us) {
  Status status = Status::ok;
  std::string failure;
  if (!runtime->runtime.wait(ticket, status, timeout_us, &failure)) return NNS_NOT_YET;
  return ended(status, failure);
}

}  // namespace

extern "C" {

const char* nns_last_error(void) { return last_error.c_str(); }

nns_status nns_create(const char* config, nns_runtime** runtime) {
  return guarded([&] {
    need(runtime, "runtime");
    *runtime = nullptr;
    *runtime = new nns_runtime(parse_options(config));
    return NNS_OK;
  });
}

nns_status nns_open(nns_runtime* runtime, const nns_model* model, const char* weights,
                    const char* costs, size_t places, size_t* network) {
  return guarded([&] {
    need(runtime, "runtime");
    need(model, "model");
    need(weights, "weights");
    need(network, "network");
    return open_network(runtime, model, Weights::open(weights), costs, places, network);
  });
}

nns_status nns_open_memory(nns_runtime* runtime, const nns_model* model, const void* weights,
                           size_t size_bytes, const char* costs, size_t places, size_t* network) {
  return guarded([&] {
    need(runtime, "runtime");
    need(model, "model");
    need(weights, "weights");
    need(network, "network");
    return open_network(runtime, model, Weights::of_memory(weights, size_bytes, "in memory"), costs,
                        places, network);
  });
}

nns_status nns_start(nns_runtime* runtime) {
  return guarded([&] {
    need(runtime, "runtime");
    runtime->runtime.start();
    return NNS_OK;
  });
}

nns_status nns_write_trace(const nns_runtime* runtime, const char* path) {
  return guarded([&] {
    need(runtime, "runtime");
    need(path, "path");
    write_trace(path, runtime->runtime);
    return NNS_OK;
  });
}

nns_status nns_counts(const nns_runtime* runtime, size_t network, size_t* inputs, size_t* outputs) {
  return guarded([&] {
    need(runtime, "runtime");
    const Network& opened = runtime->runtime.network(network);
    if (inputs) *inputs = opened.inputs().size();
    if (outputs) *outputs = opened.outputs().size();
    return NNS_OK;
  });
}

nns_status nns_input(const nns_runtime* runtime, size_t network, size_t index, nns_shape* shape) {
  return guarded([&] {
    need(runtime, "runtime");
    return port_shape(runtime->runtime.network(network).inputs(), index, shape);
  });
}

nns_status nns_output(const nns_runtime* runtime, size_t network, size_t index, nns_shape* shape) {
  return guarded([&] {
    need(runtime, "runtime");
    return port_shape(runtime->runtime.network(network).outputs(), index, shape);
  });
}

nns_status nns_run(nns_runtime* runtime, size_t network, const float* const* inputs,
                   float* const* outputs, const nns_request* request) {
  return guarded([&] {
    return wait(runtime, submit(runtime, network, inputs, outputs, request), -1.0);
  });
}

nns_status nns_submit(nns_runtime* runtime, size_t network, const float* const* inputs,
                      float* const* outputs, const nns_request* request, nns_ticket* ticket) {
  return guarded([&] {
    need(ticket, "ticket");
    const Ticket submitted = submit(runtime, network, inputs, outputs, request);
    *ticket = {submitted.place, submitted.number};
    return NNS_OK;
  });
}

nns_status nns_wait(nns_runtime* runtime, nns_ticket ticket, double timeout_us) {
  return guarded([&] {
    need(runtime, "runtime");
    return wait(runtime, {static_cast<std::size_t>(ticket.place), ticket.number}, timeout_us);
  });
}

nns_status nns_poll(nns_runtime* runtime, nns_ticket ticket) { return nns_wait(runtime, ticket, 0.0); }

nns_status nns_cancel(nns_runtime* runtime, nns_ticket ticket) {
  return guarded([&] {
    need(runtime, "runtime");
    runtime->runtime.cancel({static_cast<std::size_t>(ticket.place), ticket.number});
    return NNS_OK;
  });
}

void nns_close(nns_runtime* runtime) { delete runtime; }

nns_status nns_link_element(const nns_element* element) {
  return guarded([&] {
    need(element, "element");
    link_element(*element);
    return NNS_OK;
  });
}

nns_status nns_session_open(nns_runtime* runtime, const char* costs, size_t most_calls,
                            nns_session** session) {
  return guarded([&] {
    need(runtime, "runtime");
    need(session, "session");
    auto opened = std::make_unique<nns_session>();
    opened->session = &runtime->runtime.open_session(costs ? costs : "", most_calls);
    runtime->sessions.push_back(std::move(opened));
    *session = runtime->sessions.back().get();
    return NNS_OK;
  });
}

nns_status nns_session_wait(nns_session* session, uint64_t ticket, double timeout_us) {
  return guarded([&] {
    need(session, "session");
    Status status = Status::ok;
    std::string failure;
    if (!session->session->wait(ticket, status, timeout_us, &failure)) return NNS_NOT_YET;
    return ended(status, failure);
  });
}

nns_status nns_enqueue(nns_session* session, const nns_call* call, uint64_t* ticket) {
  return guarded([&] {
    need(session, "session");
    need(call, "call");
    if (ticket) {
      *ticket = session->session->enqueue(*call);
      return NNS_OK;
    }
    std::string failure;
    const Status status = session->session->carry_out(*call, &failure);
    return ended(status, failure);
  });
}

nns_status nns_session_finish(nns_session* session) {
  return guarded([&] {
    need(session, "session");
    std::string failure;
    const Status status = session->session->finish(&failure);
    return ended(status, failure);
  });
}
}
