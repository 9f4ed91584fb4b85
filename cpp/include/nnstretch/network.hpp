// A network: calls in forward order, the tasks they form, and where every tensor lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "nnstretch/operations.hpp"
#include "nnstretch/view.hpp"
#include "nnstretch/weights.hpp"

namespace nnstretch {

struct Call {
  std::string name;  // Dotted path of the module that made it.
  Operation operation;
  std::vector<View> reads;
  View write;
};

// Calls that run one after the other on one element.
struct Task {
  std::string name;
  std::string placement;  // The processor its plan chose; empty leaves it to the policy.
  std::size_t first_call = 0;
  std::size_t end_call = 0;
  std::vector<std::size_t> needs;    // Tasks that must end before.
  std::vector<std::size_t> readers;  // Tasks that need this one.
};

enum class Numbers : std::uint8_t { real, whole };

struct Port {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t elements = 1;
  Numbers numbers = Numbers::real;  // Whole ones (ids of tokens) are floats, too.
};

class Prepared;

class Network {
 public:
  // `arena_floats`: working memory of one inference, all offsets lie in it.
  Network(std::string name, std::shared_ptr<const Weights> weights, std::int64_t arena_floats);

  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  View input(const std::string& name, std::initializer_list<std::int64_t> shape,
             Numbers numbers = Numbers::real);
  View output(const std::string& name, std::initializer_list<std::int64_t> shape);
  View weight(const std::string& name, std::initializer_list<std::int64_t> shape) const;
  static View arena(std::int64_t offset, std::initializer_list<std::int64_t> shape);
  // Other elements of the memory that `base` starts at; the offset counts from there.
  static View view(const View& base, std::int64_t offset, std::initializer_list<std::int64_t> shape,
                   std::initializer_list<std::int64_t> stride);

  // Calls from here on form a new task.
  void begin_task(const std::string& name, const std::string& placement = "");
  // Add a call. Throws Error where a view leaves its memory.
  void call(const std::string& name, const Operation& operation, std::initializer_list<View> reads,
            const View& write);
  // Order the tasks; after this the network is only read.
  void finish();

  const std::string& name() const { return name_; }
  const std::vector<Port>& inputs() const { return inputs_; }
  const std::vector<Port>& outputs() const { return outputs_; }
  const std::vector<Call>& calls() const { return calls_; }
  const std::vector<Task>& tasks() const { return tasks_; }
  std::int64_t arena_floats() const { return arena_floats_; }
  bool has_weights() const { return weights_ != nullptr; }
  const Weights& weights() const { return *weights_; }
  // Kernels of a set, weights reordered when they are first asked for; they live as long as this.
  // `own_layouts`: no one but the host reads what calls leave in the arena. Throws Error for a set
  // that this build lacks; "" is its fastest.
  const Prepared& prepared(const std::string& kernels, bool own_layouts) const;

 private:
  void check(const Call& call) const;
  void order_tasks();

  std::string name_;
  std::shared_ptr<const Weights> weights_;
  std::int64_t arena_floats_;
  std::vector<Port> inputs_;
  std::vector<Port> outputs_;
  std::vector<Call> calls_;
  std::vector<Task> tasks_;
  mutable std::mutex prepared_mutex_;
  mutable std::map<std::pair<bool, bool>, std::unique_ptr<const Prepared>> prepared_;
};

// Operation, shapes and attributes of a call in one line: the key of its costs. What changes
// numbers and no work (bounds of a clamp, factors) is left out, and so are strides: calls that differ
// by them alone share costs.
std::string signature(const Call& call);

// Memory of one inference.
struct Memory {
  const float* const* inputs = nullptr;
  float* const* outputs = nullptr;
  float* arena = nullptr;
};

// Whether the machine has memory for so many numbers at all; where the system promises more than it
// has, touching it ends the process. True where it does not say.
bool fits_memory(double floats);
// Floats that lie at a multiple of 64 bytes. Throws Error (no_memory).
float* allocate_floats(std::size_t count);
void free_floats(float* memory);
const char* instruction_set();
// "oneDNN 2.6.3", or null where this build has portable kernels only.
const char* kernel_library();

}  // namespace nnstretch
