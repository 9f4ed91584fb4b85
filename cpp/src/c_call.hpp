// Calls as the C interface and vendors see them: one flat struct.
#pragma once

#include <cstddef>

#include "kernels/kernels.hpp"
#include "nnstretch/network.hpp"
#include "nnstretch/nnstretch.h"

namespace nnstretch {

// A call of a network; data of its weights is set, other data is null.
nns_call c_call(const Network& network, const Call& call);
// Set all data for one inference.
void resolve(const Network& network, const Call& call, const Memory& memory, nns_call& target);
// Throws Error for numbers that are out of range and sizes that do not fit together.
Operation operation_of(const nns_call& call);
kernels::Tensor tensor_of(const nns_tensor& tensor);
// A call as signature() wants it: views of the arena with its sizes.
Call call_of(const Operation& operation, const nns_call& call);

// Floats from the first of a tensor that was checked to one past its last.
std::size_t extent(const nns_tensor& tensor);
// Whether two tensors that were checked may share a number. Parts of the images of one batch, as a
// join in place has them, share none, nor do numbers of one memory that take turns.
bool overlap(const nns_tensor& a, const nns_tensor& b);

}  // namespace nnstretch
