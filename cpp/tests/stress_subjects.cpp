#include "stress_subjects.hpp"

#include <random>
#include <utility>

#include "nnstretch/error.hpp"
#include "nnstretch/runtime.hpp"

using namespace nnstretch;

namespace {

constexpr std::int64_t kSize = 64;

}  // namespace

std::shared_ptr<const Network> make_branches(const std::string& name, int branches, int length) {
  auto network = std::make_shared<Network>(name, nullptr, kSize * (branches * 2 + 2));
  const View x = network->input("x", {kSize});
  const View y = network->output("y", {kSize});
  Scalar plus_one;
  plus_one.number = 1.0F;
  std::vector<View> ends;
  for (int branch = 0; branch < branches; ++branch) {
    View from = x;
    for (int step = 0; step <= branch + length; ++step) {
      network->begin_task(name + std::to_string(branch) + "." + std::to_string(step));
      const View to = Network::arena(kSize * (branch * 2 + step % 2), {kSize});
      network->call("plus", plus_one, {from}, to);
      from = to;
    }
    ends.push_back(from);
  }
  network->begin_task(name + ".sum");
  View sum = ends[0];
  for (int branch = 1; branch < branches; ++branch) {
    const bool last = branch + 1 == branches;
    const View to = last ? y : Network::arena(kSize * (branches * 2 + branch % 2), {kSize});
    network->call("sum", Binary{}, {sum, ends[static_cast<std::size_t>(branch)]}, to);
    sum = to;
  }
  network->finish();
  return network;
}

std::vector<Subject> sums() {
  constexpr int kInputs = 100, kLength[2] = {1, 2}, kBranches[2] = {3, 4};
  std::vector<Subject> subjects;
  for (std::size_t i = 0; i < 2; ++i) {
    Subject subject{make_branches(i == 0 ? "a" : "b", kBranches[i], kLength[i]), {}, {}};
    for (int x = 0; x < kInputs; ++x) {
      float sum = 0.0F;
      for (int branch = 0; branch < kBranches[i]; ++branch)
        sum += static_cast<float>(x + branch + kLength[i] + 1);
      subject.inputs.emplace_back(kSize, static_cast<float>(x));
      subject.answers.emplace_back(kSize, sum);
    }
    subjects.push_back(std::move(subject));
  }
  return subjects;
}

Subject exported(const nns_model* model, const char* weights, const std::string& kernels) {
  constexpr std::size_t kInputs = 4;
  Subject subject{model->make(std::make_shared<Weights>(Weights::open(weights))), {}, {}};
  RuntimeOptions options;
  options.elements.emplace_back();
  options.kernels = kernels;
  Runtime runtime(options);
  const std::vector<CostRow> costs(subject.network->tasks().size(), {1.0});
  const std::size_t number = runtime.open(subject.network, 1, costs);
  runtime.start();
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < kInputs; ++i) {
    subject.inputs.emplace_back(subject.network->inputs()[0].elements);
    for (float& x : subject.inputs.back()) x = normal(generator);
    subject.answers.emplace_back(subject.network->outputs()[0].elements);
    const float* inputs[1] = {subject.inputs.back().data()};
    float* outputs[1] = {subject.answers.back().data()};
    Status status = Status::failed;
    runtime.wait(runtime.submit(number, inputs, outputs), status, -1.0);
    if (status != Status::ok) throw Error(status, "the first inferences failed");
  }
  return subject;
}
