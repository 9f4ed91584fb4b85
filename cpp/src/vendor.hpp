// Elements of vendors: found, checked, and the calls of a network that they compute.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "nnstretch/network.hpp"
#include "nnstretch/nnstretch.h"
#include "nnstretch/runtime.hpp"

namespace nnstretch {

// Throws Error: no such library, no symbol, another version, a function missing.
const nns_element& load_element(const std::string& path);
void link_element(const nns_element& element);
const nns_element& linked_element(const std::string& name);

// Elements as text: cpu, cpu:CORE, emulated:TYPE, library:PATH, linked:NAME. A vendor's element that
// is there several times is several units, those that are no other runtime's first.
std::vector<ElementOptions> elements_of(const std::vector<std::string>& texts);

bool supports(const ElementOptions& element, const nns_call& call);

// Units of vendors' elements that are one runtime's: no other one of this program gets them.
class ReservedUnits {
 public:
  // Throws Error for a unit that its element does not have, that is there twice or that is another
  // runtime's.
  explicit ReservedUnits(const std::vector<ElementOptions>& elements);
  ~ReservedUnits();
  ReservedUnits(const ReservedUnits&) = delete;
  ReservedUnits& operator=(const ReservedUnits&) = delete;

 private:
  std::set<std::pair<const nns_element*, int>> units_;
};

// The calls of a network that one unit computes, prepared.
class VendorCalls {
 public:
  // Throws Error where `prepare` fails for a call that `supports` promised.
  VendorCalls(const Network& network, const ElementOptions& element);
  ~VendorCalls();
  VendorCalls(const VendorCalls&) = delete;
  VendorCalls& operator=(const VendorCalls&) = delete;
  bool has(std::size_t call) const { return supported_[call]; }
  // Throws Error (failed) with what the vendor says.
  void run(std::size_t call, const Memory& memory) const;

 private:
  void release() const;

  const Network& network_;
  ElementOptions element_;
  std::vector<bool> supported_;
  std::vector<nns_call> calls_;
  std::vector<void*> prepared_;
};

// One call of hand-written code: prepare, run, release.
void run_once(const ElementOptions& element, const nns_call& call);

}  // namespace nnstretch
