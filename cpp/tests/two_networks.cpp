// Inferences a second of two networks at once under EFT.
//
//   two_networks ELEMENTS WEIGHTS1 WEIGHTS2       -DFIRST=nns_model_A -DSECOND=nns_model_B
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "nnstretch/nnstretch.h"

extern "C" const nns_model* FIRST(void);
extern "C" const nns_model* SECOND(void);

namespace {

constexpr int kPlaces = 2;      // Inferences of each network that are under way.
constexpr double kSeconds = 3;  // Measured; a fifth of it before warms up.

struct Network {
  std::size_t number = 0;
  std::vector<float> input, output;
  nns_ticket tickets[kPlaces] = {};
};

void check(nns_status status) {
  if (status == NNS_OK) return;
  std::fprintf(stderr, "two_networks: %s\n", nns_last_error());
  std::exit(1);
}

std::size_t elements_of(const nns_shape& shape) {
  std::size_t count = 1;
  for (int axis = 0; axis < shape.rank; ++axis) count *= static_cast<std::size_t>(shape.sizes[axis]);
  return count;
}

void submit(nns_runtime* runtime, Network& network, int place) {
  const float* inputs[1] = {network.input.data()};
  const std::size_t size = network.output.size() / kPlaces;
  float* outputs[1] = {network.output.data() + size * static_cast<std::size_t>(place)};
  check(nns_submit(runtime, network.number, inputs, outputs, nullptr, &network.tickets[place]));
}

double seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// Rounds of one inference of each network in each place; how many end in a second.
double rate(nns_runtime* runtime, std::vector<Network>& networks, double limit_s) {
  const double start = seconds();
  long ended = 0;
  for (Network& network : networks)
    for (int place = 0; place < kPlaces; ++place) submit(runtime, network, place);
  while (seconds() - start < limit_s)
    for (int place = 0; place < kPlaces; ++place)
      for (Network& network : networks) {
        check(nns_wait(runtime, network.tickets[place], -1.0));
        ++ended;
        submit(runtime, network, place);
      }
  for (Network& network : networks)
    for (int place = 0; place < kPlaces; ++place) {
      check(nns_wait(runtime, network.tickets[place], -1.0));
      ++ended;
    }
  return static_cast<double>(ended) / (seconds() - start);
}

}  // namespace

int main(int count, char** words) {
  if (count != 4) return 2;
  std::string config = "{\"policy\": \"eft\", \"elements\": [\"";
  for (const char* letter = words[1]; *letter; ++letter)
    config += *letter == ',' ? std::string("\", \"") : std::string(1, *letter);
  nns_runtime* runtime = nullptr;
  check(nns_create((config + "\"]}").c_str(), &runtime));
  std::vector<Network> networks(2);
  const nns_model* const models[2] = {FIRST(), SECOND()};
  for (std::size_t i = 0; i < 2; ++i) {
    check(nns_open(runtime, models[i], words[2 + i], nullptr, kPlaces, &networks[i].number));
    nns_shape shape;
    check(nns_input(runtime, networks[i].number, 0, &shape));
    networks[i].input.resize(elements_of(shape), 0.5F);
    check(nns_output(runtime, networks[i].number, 0, &shape));
    networks[i].output.resize(elements_of(shape) * kPlaces);
  }
  check(nns_start(runtime));
  rate(runtime, networks, kSeconds / 5);
  std::printf("%.4f\n", rate(runtime, networks, kSeconds));
  nns_close(runtime);
  return 0;
}
