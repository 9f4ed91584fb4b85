// What the C interface needs of an exported network.
#pragma once

#include <memory>

#include "nnstretch/network.hpp"
#include "nnstretch/nnstretch.h"

struct nns_model {
  std::unique_ptr<nnstretch::Network> (*make)(std::shared_ptr<const nnstretch::Weights> weights);
};
