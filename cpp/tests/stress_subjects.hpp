// Networks for `stress`, with what they are asked and what they have to answer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nnstretch/model.hpp"

struct Subject {
  std::shared_ptr<const nnstretch::Network> network;
  std::vector<std::vector<float>> inputs, answers;
};

// y = sum over branches of x + branch + length + 1, each branch a chain of additions of 1.
std::shared_ptr<const nnstretch::Network> make_branches(const std::string& name, int branches,
                                                        int length);
// Two of them.
std::vector<Subject> sums();
// Of one input and one output; the answers are those of one element that has nothing else to do.
Subject exported(const nns_model* model, const char* weights, const std::string& kernels);
