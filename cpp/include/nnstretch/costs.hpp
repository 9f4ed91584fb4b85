// Costs of calls by element type: read from a file, measured, written, and summed over tasks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "nnstretch/network.hpp"
#include "nnstretch/runtime.hpp"

namespace nnstretch {

// Signature of a call -> element type -> microseconds.
using CostTable = std::map<std::string, std::map<std::string, double>>;

// A table as `run --profile` writes it. Throws Error for a file that is none.
CostTable read_costs(const std::string& path);
void write_costs(const std::string& path, const CostTable& table);
// Measure every call of a network on this thread by type of element, the median of `turns` runs:
// "cpu" where the host is among the elements, and what vendors support. Where the host is several
// elements, all of them compute the network meanwhile. Of two vendors of one type each is compared,
// and what both support takes as long as on the first. Emulated elements are not measured. No
// runtime may compute on the vendors' units meanwhile. `kernels`: as in RuntimeOptions. Throws Error
// where a vendor computes something else than the host.
CostTable measure_costs(const Network& network, const std::vector<ElementOptions>& elements,
                        const std::string& kernels, int turns);
// Costs of every task on every element, as Runtime::open() wants them. Throws Error that names a
// call without a cost, and an element that can run nothing of the network.
std::vector<CostRow> task_costs(const Network& network, const CostTable& table,
                                const std::vector<ElementOptions>& elements);

// Leave every task the elements that its plan put it on, by name or type; the policy `planned` needs
// that. Tasks without a place keep all. Throws Error that names a task of another processor.
void keep_placements(const Network& network, const std::vector<ElementOptions>& elements,
                     std::vector<CostRow>& rows);

}  // namespace nnstretch
