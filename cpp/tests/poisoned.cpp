// Tasks in random orders that their needs allow, and NaN wherever the arena holds nothing that a
// later task reads: what is read before it is written shows in the outputs.
//
//   poisoned WEIGHTS ORDERS       -DNETWORK=nns_model_A
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "nnstretch/error.hpp"
#include "nnstretch/model.hpp"
#include "prepared.hpp"

extern "C" const nns_model* NETWORK(void);

namespace {

using nnstretch::Call;
using nnstretch::Network;
using nnstretch::Storage;
using nnstretch::Task;
using nnstretch::View;
using Places = std::vector<bool>;  // Of each number of the arena.
using Arrays = std::vector<std::vector<float>>;

const float kPoison = std::numeric_limits<float>::quiet_NaN();

void visit(const View& view, const std::function<void(std::size_t)>& each) {
  if (view.storage != Storage::arena) return;
  for (std::int64_t i = 0; i < view.elements(); ++i) {
    std::int64_t rest = i, at = view.offset;
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      const auto place = static_cast<std::size_t>(axis);
      at += rest % view.shape[place] * view.stride[place];
      rest /= view.shape[place];
    }
    each(static_cast<std::size_t>(at));
  }
}

// What a task needs of the arena: turns "needed after it" into "needed before it".
void before_task(const Network& network, const Task& task, Places& needed) {
  for (std::size_t index = task.end_call; index-- > task.first_call;) {
    const Call& call = network.calls()[index];
    visit(call.write, [&](std::size_t at) { needed[at] = false; });
    for (const View& view : call.reads) visit(view, [&](std::size_t at) { needed[at] = true; });
  }
}

std::vector<std::size_t> random_order(const Network& network, std::mt19937& random) {
  std::vector<std::size_t> order, ready, unmet;
  for (const Task& task : network.tasks()) unmet.push_back(task.needs.size());
  for (std::size_t task = 0; task < unmet.size(); ++task)
    if (unmet[task] == 0) ready.push_back(task);
  while (!ready.empty()) {
    std::swap(ready[random() % ready.size()], ready.back());
    order.push_back(ready.back());
    ready.pop_back();
    for (const std::size_t reader : network.tasks()[order.back()].readers)
      if (--unmet[reader] == 0) ready.push_back(reader);
  }
  return order;
}

class Inference {
 public:
  explicit Inference(const Network& network)
      : network_(network),
        prepared_(network, false, false),
        arena_(nnstretch::allocate_floats(floats()), nnstretch::free_floats),
        scratch_(prepared_.scratch_floats() + 1) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (const nnstretch::Port& port : network.inputs()) {
      inputs_.emplace_back(static_cast<std::size_t>(port.elements));
      for (float& number : inputs_.back())
        number = port.numbers == nnstretch::Numbers::whole ? 0.0F : normal(random);
    }
  }

  // The numbers poisoned are added to `poisoned`.
  Arrays run(const std::vector<std::size_t>& order, bool poison, std::size_t& poisoned) {
    const std::vector<Places> needed = needed_after(order);
    Arrays outputs;
    for (const nnstretch::Port& port : network_.outputs())
      outputs.emplace_back(static_cast<std::size_t>(port.elements), kPoison);
    std::vector<const float*> reads;
    std::vector<float*> writes;
    for (const std::vector<float>& input : inputs_) reads.push_back(input.data());
    for (std::vector<float>& output : outputs) writes.push_back(output.data());
    std::fill_n(arena_.get(), floats(), poison ? kPoison : 0.0F);
    for (std::size_t turn = 0; turn < order.size(); ++turn) {
      const Task& task = network_.tasks()[order[turn]];
      for (std::size_t call = task.first_call; call < task.end_call; ++call)
        prepared_.compute(call, {reads.data(), writes.data(), arena_.get()}, scratch_.data());
      if (poison) poisoned += fill_unneeded(needed[turn]);
    }
    return outputs;
  }

 private:
  std::size_t floats() const { return static_cast<std::size_t>(network_.arena_floats()) + 1; }

  std::vector<Places> needed_after(const std::vector<std::size_t>& order) const {
    std::vector<Places> needed(order.size(), Places(floats(), false));
    Places now(floats(), false);
    for (std::size_t turn = order.size(); turn-- > 0;) {
      needed[turn] = now;
      before_task(network_, network_.tasks()[order[turn]], now);
    }
    return needed;
  }

  std::size_t fill_unneeded(const Places& needed) {
    std::size_t filled = 0;
    for (std::size_t at = 0; at < needed.size(); ++at) {
      if (needed[at]) continue;
      arena_.get()[at] = kPoison;
      ++filled;
    }
    std::fill(scratch_.begin(), scratch_.end(), kPoison);
    return filled;
  }

  const Network& network_;
  nnstretch::Prepared prepared_;
  std::unique_ptr<float, void (*)(float*)> arena_;
  std::vector<float> scratch_;
  Arrays inputs_;
};

bool same_bits(const Arrays& a, const Arrays& b) {
  return std::equal(a.begin(), a.end(), b.begin(), [](const auto& one, const auto& other) {
    return std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) == 0;
  });
}

int compare(const std::string& weights, int orders) {
  const auto network =
      NETWORK()->make(std::make_shared<nnstretch::Weights>(nnstretch::Weights::open(weights)));
  Inference inference(*network);
  std::size_t poisoned = 0;
  std::vector<std::size_t> forward(network->tasks().size());
  for (std::size_t task = 0; task < forward.size(); ++task) forward[task] = task;
  const Arrays expected = inference.run(forward, false, poisoned);
  std::mt19937 random(2);
  int wrong = same_bits(inference.run(forward, true, poisoned), expected) ? 0 : 1;
  for (int turn = 0; turn < orders; ++turn)
    if (!same_bits(inference.run(random_order(*network, random), true, poisoned), expected))
      ++wrong;
  std::printf("%d of %d orders wrong, %zu tasks, %zu numbers poisoned\n", wrong, orders + 1,
              forward.size(), poisoned);
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "use: poisoned WEIGHTS ORDERS\n");
    return 1;
  }
  try {
    return compare(argv[1], std::atoi(argv[2]));
  } catch (const nnstretch::Error& error) {
    std::fprintf(stderr, "poisoned: %s\n", error.what());
    return 1;
  }
}
