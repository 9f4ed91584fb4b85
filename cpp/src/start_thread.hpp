// Threads that the system may refuse.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "nnstretch/error.hpp"

namespace nnstretch {

// Throws Error (no_memory) with what the thread was to be where there is none.
template <typename Body>
std::thread start_thread(const std::string& what, Body body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw Error(Status::no_memory, "no thread for " + what + ": " + error.what());
  }
}

}  // namespace nnstretch
