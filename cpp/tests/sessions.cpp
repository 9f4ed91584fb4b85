// Sessions under threads: what is said of calls that were cancelled, and when places are free.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "nnstretch/error.hpp"
#include "nnstretch/session.hpp"

namespace {

using namespace nnstretch;

[[noreturn]] void fail(const std::string& why) { throw std::runtime_error(why); }

std::atomic<bool> gate_is_open{false};

std::int32_t supports_all(const nns_call* call) {
  (void)call;
  return 1;
}

std::int32_t wait_at_gate(std::int32_t unit, void* prepared, const nns_call* call) {
  (void)unit;
  (void)prepared;
  (void)call;
  while (!gate_is_open) std::this_thread::yield();
  return 0;
}

const nns_element gate = {NNS_VERSION, "gate",       "npu",   1,      supports_all,
                          nullptr,     wait_at_gate, nullptr, nullptr};

nns_call copy(float* x, float* y) {
  const std::int64_t sizes[1] = {1};
  nns_call call{};
  call.operation = NNS_COPY;
  call.attributes = nns_defaults();
  call.reads_count = 1;
  call.reads[0] = nns_dense(x, 1, sizes);
  call.write = nns_dense(y, 1, sizes);
  return call;
}

// A session that is closed says so, though none of its calls failed.
void close_with_calls(const std::string& costs) {
  std::FILE* const file = std::fopen(costs.c_str(), "w");
  if (!file) fail("no table of costs can be written");
  std::fputs("{\"format\": 1, \"costs_us\": {\"copy 1 -> 1\": {\"npu\": 1}}}\n", file);
  if (std::fclose(file) != 0) fail("no table of costs can be written");
  RuntimeOptions options;
  options.elements = {{"npu0", "npu", -1, false, &gate, 0}};
  Runtime runtime(options);
  Session& session = runtime.open_session(costs, 4);
  runtime.start();
  float x = 1.0F, y = 0.0F, z = 0.0F;
  const std::uint64_t running = session.enqueue(copy(&x, &y));
  const std::uint64_t waiting = session.enqueue(copy(&y, &z));
  std::thread closing([&] { runtime.close(); });
  Status first = Status::failed, second = Status::failed;
  session.wait(waiting, second, -1.0);
  gate_is_open = true;
  session.wait(running, first, -1.0);
  closing.join();
  const Status finished = session.finish();
  if (second != Status::cancelled) fail("a call that waits is not cancelled");
  if (finished != Status::cancelled) fail("finish is silent of calls that were never carried out");
}

std::string last_number;  // Of the call that failed last; one element has one thread.

std::int32_t fail_below_zero(std::int32_t unit, void* prepared, const nns_call* call) {
  (void)unit;
  (void)prepared;
  call->write.data[0] = call->reads[0].data[0];
  last_number = std::to_string(static_cast<int>(call->reads[0].data[0]));
  return call->reads[0].data[0] < 0.0F;
}

const char* say_number(std::int32_t unit) {
  (void)unit;
  return last_number.c_str();
}

const nns_element picky = {NNS_VERSION, "picky",         "npu",   1,         supports_all,
                           nullptr,     fail_below_zero, nullptr, say_number};

// Why a call failed is said of that call, and of what reads its result; finish says it of the first.
void tell_failures_apart(const std::string& costs) {
  RuntimeOptions options;
  options.elements = {{"npu0", "npu", -1, false, &picky, 0}};
  Runtime runtime(options);
  Session& session = runtime.open_session(costs, 8);
  runtime.start();
  float x[3] = {-1.0F, 2.0F, -3.0F}, y[3] = {}, z = 0.0F;
  const std::uint64_t first = session.enqueue(copy(&x[0], &y[0]));
  const std::uint64_t reader = session.enqueue(copy(&y[0], &z));
  const std::uint64_t good = session.enqueue(copy(&x[1], &y[1]));
  const std::uint64_t last = session.enqueue(copy(&x[2], &y[2]));
  const auto expect = [&](std::uint64_t ticket, const std::string& end) {
    Status status = Status::ok;
    std::string why = "nothing is said";
    session.wait(ticket, status, -1.0, &why);
    const bool ends_so = why.size() >= end.size() &&
                         why.compare(why.size() - end.size(), end.size(), end) == 0;
    if (end.empty() ? !why.empty() || status != Status::ok : !ends_so || status != Status::failed)
      fail("of call " + std::to_string(ticket) + " is said: " + why);
  };
  expect(last, " -3");
  expect(good, "");
  expect(first, " -1");
  expect(reader, " -1");
  std::string why;
  if (session.finish(&why) != Status::failed || why.find("-1") == std::string::npos)
    fail("finish says: " + why);
}

// Others that wait for a call, and have yet to wake, keep no place.
void reuse_places() {
  constexpr int kTurns = 2000, kOthers = 3;
  RuntimeOptions options;
  options.elements = {{"cpu0"}};
  Runtime runtime(options);
  Session& session = runtime.open_session("", 1);
  runtime.start();
  std::atomic<std::uint64_t> newest{0};
  std::atomic<bool> over{false};
  std::atomic<int> wrong{0};
  const auto follow = [&] {
    while (!over) {
      Status status = Status::failed;
      if (newest == 0 || !session.wait(newest, status, 1000.0)) continue;
      if (status != Status::ok) ++wrong;
    }
  };
  std::vector<std::thread> others;
  for (int i = 0; i < kOthers; ++i) others.emplace_back(follow);
  float x = 1.0F, y = 0.0F;
  std::string failure;
  try {
    for (int turn = 0; turn < kTurns; ++turn) {
      newest = session.enqueue(copy(&x, &y));
      if (session.finish() != Status::ok) ++wrong;
    }
  } catch (const Error& error) {
    failure = error.what();
  }
  over = true;
  for (std::thread& other : others) other.join();
  if (!failure.empty()) fail("no call is open, and: " + failure);
  if (wrong > 0) fail("calls that ended well are said to have ended otherwise");
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return 2;
  try {
    close_with_calls(words[1]);
    tell_failures_apart(words[1]);
    reuse_places();
    std::puts("ok");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sessions: %s\n", error.what());
  }
  return 1;
}
