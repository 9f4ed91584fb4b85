#include "run_ports.hpp"

#include <algorithm>

#include "nnstretch/error.hpp"

namespace nnstretch {

std::vector<std::string> paths_by_port(const std::vector<std::string>& files,
                                       const std::vector<Port>& ports, const std::string& what) {
  std::vector<std::string> paths(ports.size());
  std::vector<std::string> unnamed;
  for (const std::string& file : files) {
    const std::size_t equals = file.find('=');
    const auto port = std::find_if(ports.begin(), ports.end(), [&](const Port& candidate) {
      return equals != std::string::npos && candidate.name == file.substr(0, equals);
    });
    if (port == ports.end()) {
      unnamed.push_back(file);
      continue;
    }
    std::string& path = paths[static_cast<std::size_t>(port - ports.begin())];
    if (!path.empty() || equals + 1 == file.size())
      throw Error(Status::bad_input, what + " " + file + ", command line, " +
                                         (path.empty() ? "it names no file"
                                                       : "there is a file for " + port->name));
    path = file.substr(equals + 1);
  }
  auto next = paths.begin();
  for (const std::string& file : unnamed) {
    next = std::find(next, paths.end(), std::string());
    if (next == paths.end()) {
      std::string names;
      for (const Port& port : ports) names += (names.empty() ? "" : ", ") + port.name;
      throw Error(Status::bad_input, what + " " + file + ", command line, the network has " +
                                         std::to_string(ports.size()) + ": " + names);
    }
    *next++ = file;
  }
  return paths;
}

}  // namespace nnstretch
