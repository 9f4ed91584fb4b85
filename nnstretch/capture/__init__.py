"""A network becomes a Graph: from PyTorch, an ONNX file or a saved program; and back into a module.

model_spec.py        MODEL string -> nn.Module
model_file.py        a network of the user's own FILE.py
example_inputs.py    tensors to capture with
choose_outputs.py    only some outputs
torch_export.py      nn.Module -> Graph
program_reader.py    ExportedProgram -> Graph
captured_network.py  what capturing returns
constant_folding.py  what depends on no input and no parameter, computed at once
weight_folding.py    what follows from shapes and weights alone, of a captured graph
exported_program.py  making an ExportedProgram, and what its nodes are
host_process.py      silence for exporters, threads of operators in a fork
pt2_file.py          .pt2 -> Graph, without running it
rebuild_module.py    Graph -> nn.Module
module_layers.py     nodes -> layers of a rebuilt module, their paths
memory/              tensors that share memory, writes into them become new values
checks/              refuse or note what a graph cannot say
onnx/                ONNX file -> Graph
"""

from nnstretch._interpreter import make_callable
from nnstretch.capture.example_inputs import DEFAULT_INPUT, default_input, example_inputs
from nnstretch.capture.model_spec import load_model
from nnstretch.capture.rebuild_module import build
from nnstretch.capture.torch_export import CapturedNetwork, capture, trace

make_callable(__name__)

__all__ = [
    "DEFAULT_INPUT",
    "CapturedNetwork",
    "build",
    "capture",
    "default_input",
    "example_inputs",
    "load_model",
    "trace",
]
