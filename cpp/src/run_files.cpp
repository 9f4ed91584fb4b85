#include "run_files.hpp"

#include <string>
#include <utility>
#include <vector>

#include "nnstretch/error.hpp"
#include "run_ports.hpp"
#include "whole_file.hpp"

namespace nnstretch {
namespace {

struct Named {
  std::string option;
  std::string path;
};

std::string words_of(const Named& file) { return file.option + " " + file.path; }

void add(std::vector<Named>& files, const std::string& option,
         const std::vector<std::string>& paths) {
  for (const std::string& path : paths)
    if (!path.empty()) files.push_back({option, path});
}

}  // namespace

void check_files(const RunArguments& arguments, const Network& network) {
  std::vector<Named> files;
  add(files, "--weights", {arguments.weights});
  add(files, "--costs", {arguments.costs});
  add(files, "--input", paths_by_port(arguments.inputs, network.inputs(), "--input"));
  add(files, "--expect", paths_by_port(arguments.expected, network.outputs(), "--expect"));
  const std::size_t read = files.size();
  add(files, "--output", paths_by_port(arguments.outputs, network.outputs(), "--output"));
  add(files, "--trace", {arguments.trace});
  add(files, "--profile", {arguments.profile});
  add(files, "--graph", {arguments.graph});
  add(files, "--measure", {arguments.measure});
  for (std::size_t i = read; i < files.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j)
      if (real_path(files[i].path) == real_path(files[j].path))
        refuse(words_of(files[j]) + " and " + words_of(files[i]) +
               ", command line, they are one file");
    const WholeFile tried(files[i].path);
  }
}

}  // namespace nnstretch
