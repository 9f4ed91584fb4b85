#include "run_ports.hpp"

#include <algorithm>

#include "nnstretch/error.hpp"

namespace nnstretch {

namespace {

[[noreturn]] void refuse_file(const std::string& what, const std::string& file,
                              const std::string& why) {
  refuse(what + " " + file + ", command line, " + why);
}

std::string names_of(const std::vector<Port>& ports) {
  std::string names = "the network has " + std::to_string(ports.size()) + ": ";
  for (const Port& port : ports) names += (&port == &ports.front() ? "" : ", ") + port.name;
  return names;
}

// The name before the first =, empty where there is none; a path is no name.
std::string name_of(const std::string& file) {
  const std::size_t equals = file.find('=');
  if (equals == std::string::npos || file.find('/') < equals) return "";
  return file.substr(0, equals);
}

}  // namespace

std::vector<std::string> paths_by_port(const std::vector<std::string>& files,
                                       const std::vector<Port>& ports, const std::string& what) {
  std::vector<std::string> paths(ports.size());
  std::vector<std::string> unnamed;
  for (const std::string& file : files) {
    const std::string name = name_of(file);
    if (name.empty()) {
      unnamed.push_back(file);
      continue;
    }
    const auto port = std::find_if(ports.begin(), ports.end(), [&](const Port& candidate) {
      return candidate.name == name;
    });
    if (port == ports.end()) refuse_file(what, file, "there is no " + name + ", " + names_of(ports));
    std::string& path = paths[static_cast<std::size_t>(port - ports.begin())];
    if (!path.empty()) refuse_file(what, file, "there is a file for " + name);
    path = file.substr(name.size() + 1);
    if (path.empty()) refuse_file(what, file, "it names no file");
  }
  auto next = paths.begin();
  for (const std::string& file : unnamed) {
    next = std::find(next, paths.end(), std::string());
    if (next == paths.end()) refuse_file(what, file, names_of(ports));
    *next++ = file;
  }
  return paths;
}

}  // namespace nnstretch
