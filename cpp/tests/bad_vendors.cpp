#include "bad_vendors.hpp"

#include <atomic>
#include <cstdint>

namespace {

constexpr int kUnits = 2;
constexpr long kFailsEvery = 61;
constexpr int kLiesEvery = 8;
constexpr int kRefuses = 3;

std::atomic<long> alive{0};     // Calls that are prepared and not released.
std::atomic<long> overlaps{0};  // Calls of a unit that began while it computed.

int32_t adds(const nns_call* call) { return call->operation == NNS_SCALAR; }

// What was said before is not what is said now.
int32_t adds_mostly(const nns_call* call) {
  static int asked = 0;
  return adds(call) && ++asked % kLiesEvery != 0;
}

int32_t prepare(int32_t unit, const nns_call* call, void** prepared) {
  (void)unit;
  (void)call;
  *prepared = &alive;
  ++alive;
  return 0;
}

int32_t refuse_third(int32_t unit, const nns_call* call, void** prepared) {
  static int asked = 0;
  return ++asked == kRefuses ? 1 : prepare(unit, call, prepared);
}

int32_t add(const nns_call* call) {
  for (std::int64_t i = 0; i < call->write.sizes[0]; ++i)
    call->write.data[i] = call->reads[0].data[i] + call->attributes.number;
  return 0;
}

// Numbers of a unit are one thread's at a time, which ThreadSanitizer sees.
int32_t add_or_fail(int32_t unit, void* prepared, const nns_call* call) {
  static std::atomic<bool> inside[kUnits];
  static long runs[kUnits];
  if (prepared != &alive || inside[unit].exchange(true)) ++overlaps;
  const bool fails = ++runs[unit] % kFailsEvery == 0;
  const int32_t status = fails ? 1 : add(call);
  inside[unit] = false;
  return status;
}

int32_t add_always(int32_t unit, void* prepared, const nns_call* call) {
  (void)unit;
  (void)prepared;
  return add(call);
}

void release(int32_t unit, void* prepared) {
  (void)unit;
  if (prepared == &alive) --alive;
}

const char* why(int32_t unit) { return unit == 0 ? "the first unit is on fire" : nullptr; }

const nns_element failing = {NNS_VERSION, "failing", "npu",   kUnits,  adds,
                             prepare,     add_or_fail, release, why};
const nns_element lying = {NNS_VERSION, "lying",    "vpu",   1,      adds_mostly,
                           prepare,     add_always, release, nullptr};
const nns_element refusing = {NNS_VERSION,  "refusing", "npu",   1,      adds,
                              refuse_third, add_always, release, nullptr};

}  // namespace

std::vector<BadUnit> bad_units() { return {{&failing, 0}, {&failing, 1}, {&lying, 0}}; }

const nns_element* refusing_element() { return &refusing; }

std::string spoilt_by_vendors() {
  if (overlaps != 0) return std::to_string(overlaps) + " calls of a unit overlapped";
  if (alive != 0) return std::to_string(alive) + " prepared calls of vendors were not released";
  return "";
}
