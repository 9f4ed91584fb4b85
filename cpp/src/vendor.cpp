#include "vendor.hpp"

#include <dlfcn.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <map>
#include <mutex>

#include "c_call.hpp"
#include "nnstretch/error.hpp"
#include "regular_file.hpp"

namespace nnstretch {
namespace {

const nns_element& checked(const nns_element* element, const std::string& where) {
  if (!element) refuse(where + ", it offers no element");
  if (element->version != NNS_VERSION)
    refuse(where + ", it is of version " + std::to_string(element->version) +
           " of the interface, this runtime has " + std::to_string(NNS_VERSION));
  const auto empty = [](const char* text) { return !text || *text == '\0'; };
  if (empty(element->name) || empty(element->type) || !element->supports || !element->run)
    refuse(where + ", it lacks a name, a type, or the functions supports and run");
  if (std::string(element->type) == "cpu")
    refuse(where + ", its type is cpu, which is the host's");
  if (element->units < 1 || element->units > 64)
    refuse(where + ", it has " + std::to_string(element->units) + " units, 1 to 64 are possible");
  return *element;
}

struct Linked {
  std::mutex mutex;
  std::map<std::string, const nns_element*> elements;
};

Linked& linked() {
  static Linked elements;
  return elements;
}

struct Reserved {
  std::mutex mutex;
  std::set<std::pair<const nns_element*, int>> units;
};

Reserved& reserved() {
  static Reserved units;
  return units;
}

// The lowest unit that neither this list nor another runtime has; else the lowest that is not in
// this list, of which ReservedUnits says whose it is; the number of units where all are in it.
int next_unit(const nns_element& element, const std::set<int>& taken) {
  const std::lock_guard<std::mutex> lock(reserved().mutex);
  int lowest = element.units;
  for (int unit = element.units; unit-- > 0;)
    if (taken.count(unit) == 0) lowest = unit;
  for (int unit = lowest; unit < element.units; ++unit)
    if (taken.count(unit) == 0 && reserved().units.count({&element, unit}) == 0) return unit;
  return lowest;
}

std::string reason(const ElementOptions& element) {
  const char* text = element.vendor->error ? element.vendor->error(element.unit) : nullptr;
  return text && *text != '\0' ? std::string(": ") + text : "";
}

// Cores that this process may use, empty where the system does not say.
std::vector<int> usable_cores() {
  std::vector<int> cores;
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(static_cast<unsigned>(core), &set)) cores.push_back(core);
#endif
  return cores;
}

int core_of(const std::string& text, const std::string& digits) {
  const bool sound = !digits.empty() && digits.size() < 5 &&
                     digits.find_first_not_of("0123456789") == std::string::npos;
  if (!sound) refuse("element " + text + ", its core is a number from 0 on");
  const int core = std::stoi(digits);
  const std::vector<int> cores = usable_cores();
  if (!cores.empty() && std::find(cores.begin(), cores.end(), core) == cores.end()) {
    const std::string first = std::to_string(cores.front()), last = std::to_string(cores.back());
    const std::string all = std::to_string(cores.size()) + " are from " + first + " to " + last;
    refuse("element " + text + ", there is no such core for this process, its " +
           (cores.size() == 1 ? "only one is " + first : all));
  }
  return core;
}

ElementOptions element_of(const std::string& text, std::size_t index) {
  const std::size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  const std::string rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  ElementOptions element;
  if (kind == "cpu") {
    if (colon != std::string::npos) element.core = core_of(text, rest);
  } else if (kind == "emulated" && !rest.empty()) {
    element.type = rest;
    element.emulated = true;
  } else if (kind == "library" && !rest.empty()) {
    element.vendor = &load_element(rest);
  } else if (kind == "linked" && !rest.empty()) {
    element.vendor = &linked_element(rest);
  } else {
    refuse((text.empty() ? "element " + std::to_string(index + 1) + " has no name"
                         : "unknown element " + text) +
           ", elements are cpu, cpu:CORE, emulated:TYPE, library:PATH, linked:NAME");
  }
  if (element.vendor) element.type = element.vendor->type;
  element.name = element.type + std::to_string(index);
  return element;
}

void prepare(const ElementOptions& element, const nns_call& call, const std::string& name,
             void*& prepared) {
  const nns_element& vendor = *element.vendor;
  if (vendor.prepare && vendor.prepare(element.unit, &call, &prepared) != 0)
    refuse("element " + element.name + " said that it supports " + name +
           " and failed to prepare it" + reason(element));
}

void run(const ElementOptions& element, const nns_call& call, void* prepared) {
  if (element.vendor->run(element.unit, prepared, &call) != 0)
    throw Error(Status::failed, "element " + element.name + " failed" + reason(element));
}

}  // namespace

const nns_element& load_element(const std::string& path) {
  const std::string name = "library " + path;
  // A name without a folder is looked for where the system's libraries are.
  if (path.find('/') != std::string::npos) (void)RegularFile(path, name);
  // Never unloaded: an element may have threads of its own.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) refuse(name + ", it cannot be loaded: " + dlerror());
  void* symbol = dlsym(library, NNS_ELEMENT_SYMBOL);
  if (!symbol) refuse(name + ", it has no symbol " NNS_ELEMENT_SYMBOL);
  const auto entry = reinterpret_cast<const nns_element* (*)()>(symbol);
  return checked(entry(), name);
}

void link_element(const nns_element& element) {
  checked(&element, "linked element");
  const std::lock_guard<std::mutex> lock(linked().mutex);
  const auto entry = linked().elements.emplace(element.name, &element).first;
  if (entry->second != &element)
    refuse("linked element " + entry->first + ", another one is linked in by this name");
}

const nns_element& linked_element(const std::string& name) {
  const std::lock_guard<std::mutex> lock(linked().mutex);
  const auto entry = linked().elements.find(name);
  if (entry == linked().elements.end()) refuse("no element " + name + " is linked in");
  return *entry->second;
}

std::vector<ElementOptions> elements_of(const std::vector<std::string>& texts) {
  std::vector<ElementOptions> elements;
  std::map<const nns_element*, std::set<int>> units;
  for (const std::string& text : texts) {
    ElementOptions element = element_of(text, elements.size());
    if (element.vendor) {
      std::set<int>& taken = units[element.vendor];
      element.unit = next_unit(*element.vendor, taken);
      if (!taken.insert(element.unit).second || element.unit >= element.vendor->units)
        refuse("element " + text + " is there " + std::to_string(taken.size()) +
               " times, it has " + std::to_string(element.vendor->units) + " units");
    }
    elements.push_back(std::move(element));
  }
  return elements;
}

bool supports(const ElementOptions& element, const nns_call& call) {
  return !element.vendor || element.vendor->supports(&call) == 1;
}

ReservedUnits::ReservedUnits(const std::vector<ElementOptions>& elements) {
  const std::lock_guard<std::mutex> lock(reserved().mutex);
  for (const ElementOptions& element : elements) {
    if (!element.vendor) continue;
    const std::string unit = "element " + element.name + ", unit " + std::to_string(element.unit) +
                             " of " + element.vendor->name;
    if (element.unit < 0 || element.unit >= element.vendor->units)
      refuse(unit + " is none, it has " + std::to_string(element.vendor->units) + " units");
    if (!units_.emplace(element.vendor, element.unit).second)
      refuse(unit + " is another element, too");
    if (reserved().units.count({element.vendor, element.unit}) > 0)
      refuse(unit + " is another runtime's");
  }
  auto mine = units_;
  reserved().units.merge(mine);  // Allocates nothing: all of them or none.
}

ReservedUnits::~ReservedUnits() {
  const std::lock_guard<std::mutex> lock(reserved().mutex);
  for (const auto& unit : units_) reserved().units.erase(unit);
}

VendorCalls::VendorCalls(const Network& network, const ElementOptions& element)
    : network_(network), element_(element) {
  const std::size_t count = network.calls().size();
  prepared_.resize(count, nullptr);
  supported_.resize(count, false);
  try {
    for (std::size_t i = 0; i < count; ++i) {
      calls_.push_back(c_call(network, network.calls()[i]));
      if (!supports(element, calls_[i])) continue;
      prepare(element, calls_[i], signature(network.calls()[i]), prepared_[i]);
      supported_[i] = true;
    }
  } catch (...) {
    release();
    throw;
  }
}

VendorCalls::~VendorCalls() { release(); }

void VendorCalls::release() const {
  if (!element_.vendor->release) return;
  for (std::size_t i = 0; i < prepared_.size(); ++i)
    if (supported_[i]) element_.vendor->release(element_.unit, prepared_[i]);
}

void VendorCalls::run(std::size_t call, const Memory& memory) const {
  if (!supported_[call])
    throw Error(Status::failed, "element " + element_.name + " said before that it supports " +
                                    signature(network_.calls()[call]) + ", and not when it was opened");
  nns_call current = calls_[call];
  resolve(network_, network_.calls()[call], memory, current);
  nnstretch::run(element_, current, prepared_[call]);
}

void run_once(const ElementOptions& element, const nns_call& call) {
  void* prepared = nullptr;
  prepare(element, call, "a call", prepared);
  try {
    run(element, call, prepared);
  } catch (...) {
    if (element.vendor->release) element.vendor->release(element.unit, prepared);
    throw;
  }
  if (element.vendor->release) element.vendor->release(element.unit, prepared);
}

}  // namespace nnstretch
