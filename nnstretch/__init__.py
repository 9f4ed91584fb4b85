"""Stretch a network into parallel branches for the processors of one chip, and run it.

`import nnstretch` loads neither torch nor ONNX Runtime; each name below brings its own when it is
first used. Type checkers and editors see every name with its signature.

Nouns, in the order of the story:

errors.py         what can be wrong, one line each
graph.py          captured network: operators in execution order
kernel.py         one launch on a processor, and what a backend fuses into it
predictor.py      latency of a kernel on a processor
soc.py            chip: processors and links; soc_instances.py several of one processor
plan.py           segments, branches, processors, depths, widths
trial.py          plan with its predicted cost
pipeline.py       stages of a stream of inputs
task.py           one sub-graph for one input
task_graph.py     tasks that need each other, with their costs
trace.py          what ran where and when
protocols.py      interfaces: policy, executor, backend
chip/             one accelerator, instances of sub-graphs, parts of tensors
_interpreter.py   lazy names, callable packages, a pause of the cycle collector

Verbs:

files/      strict reading, atomic writing
bundle/     the .nns file
structure/  cuts, repeats, channel groups, fused kernels, segment cost
capture/    PyTorch, ONNX, .pt2 -> graph
predict/    chip descriptions and predictors
profile/    measure this machine, fit predictors
stretch/    search, lower, estimate, build branched networks
partition/  stages of a stream
train/      Lightning recipes and data
study/      Optuna studies
export/     bundles and single files
schedule/   which task where and when
run/        backends, sessions, servers, pipelines
serve/      networks behind HTTP, by the Open Inference Protocol
accelerate/ inside one accelerator: instances on chip
bench/      fair comparisons
report/     one HTML page
cli/        one module a verb
testing/    suites that authors of predictors, backends, policies and data sets inherit
"""

from __future__ import annotations

from nnstretch._interpreter import TYPE_CHECKING, lazy_names

if TYPE_CHECKING:
    from nnstretch.capture import capture as capture
    from nnstretch.capture.model_spec import load_model as load_model
    from nnstretch.export import export as export
    from nnstretch.export.quantize import quantize as quantize
    from nnstretch.partition.connect import PipelineConfig as PipelineConfig
    from nnstretch.predict.load_soc import load_soc as load_soc
    from nnstretch.profile import profile as profile
    from nnstretch.run.pipelines.pipeline import Pipeline as Pipeline
    from nnstretch.run.server import Server as Server
    from nnstretch.run.session import Session as Session
    from nnstretch.stretch import stretch as stretch
    from nnstretch.stretch.search.search import search as search

__version__ = "0.1.0"

_HOMES = {
    "Pipeline": "run.pipelines.pipeline",
    "PipelineConfig": "partition.connect",
    "Server": "run.server",
    "Session": "run.session",
    "capture": "capture",
    "export": "export",
    "load_model": "capture.model_spec",
    "load_soc": "predict.load_soc",
    "profile": "profile",
    "quantize": "export.quantize",
    "search": "stretch.search.search",
    "stretch": "stretch",
}
__all__ = sorted(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
