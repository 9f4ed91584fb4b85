// Policies that keep more than an order: made here, chosen by name in policies.cpp.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "nnstretch/schedule.hpp"

namespace nnstretch {

// Jobs as they come, on the elements in turn.
std::unique_ptr<Policy> round_robin(const Costs& costs, std::size_t capacity);
// The cheapest type of element whatever its load, of that type in turn.
std::unique_ptr<Policy> cheapest_type(const Costs& costs, const std::vector<ElementState>& elements,
                                      std::size_t capacity);
// The pair of job and element that ends first of all pairs.
std::unique_ptr<Policy> earliest_pair(const Costs& costs, std::size_t capacity);

}  // namespace nnstretch
