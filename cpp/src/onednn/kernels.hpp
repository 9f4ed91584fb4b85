// Calls as primitives of oneDNN; null where it has only slow ones.
#pragma once

#include "library.hpp"

namespace nnstretch::library {

bool offers_convolution(const Conv2d& conv, const Call& call);
std::unique_ptr<Kernel> convolution(const Conv2d& conv, const Request& request);
bool offers_deconvolution(const ConvTranspose2d& conv, const Call& call);
std::unique_ptr<Kernel> deconvolution(const ConvTranspose2d& conv, const Request& request);
bool offers_matmul(const Matmul& matmul, const Call& call);
std::unique_ptr<Kernel> matrix_product(const Matmul& matmul, const Request& request);
bool offers_pool(const Pool2d& pool, const Call& call);
std::unique_ptr<Kernel> pooling(const Pool2d& pool, const Request& request);

}  // namespace nnstretch::library
