// Layer calls of hand-written code that are almost sound: refused, or computed inside their tensors.
#pragma once

#include <memory>
#include <random>

#include "nnstretch/nnstretch.h"

class CallFuzzer {
 public:
  CallFuzzer();
  ~CallFuzzer();
  CallFuzzer(const CallFuzzer&) = delete;
  CallFuzzer& operator=(const CallFuzzer&) = delete;
  // Carry out a call whose tensors are allocated as long as they say, so that AddressSanitizer sees
  // what is read beside them; return its status.
  nns_status run();

 private:
  std::mt19937_64 draw_{1};
  nns_runtime* runtime_ = nullptr;
  nns_session* session_ = nullptr;
};
