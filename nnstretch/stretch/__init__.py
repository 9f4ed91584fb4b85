"""A plan and a graph become a stretched network: lowered, estimated, searched and built.

    lowering/   plan + graph -> graph of each branch
    cost/       predicted latency, MACs, parameters
    search/     the exact search
    weights/    torch module, inherited weights
    published/  NN-Stretch's published configurations

Only `weights/` loads torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nnstretch._callable_package import callable_verb
from nnstretch.files.plan_yaml import read_plan, write_plan
from nnstretch.stretch.lowering.lower import LoweredNetwork, lower, single_processor_plan
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis

if TYPE_CHECKING:
    from nnstretch.stretch.weights.branched_module import StretchedNetwork, stretch

_LAZY = {
    "stretch": "nnstretch.stretch.weights.branched_module",
    "StretchedNetwork": "nnstretch.stretch.weights.branched_module",
}
callable_verb(__name__)
__all__ = [
    "LoweredNetwork",
    "NetworkAnalysis",
    "StretchedNetwork",
    "lower",
    "read_plan",
    "single_processor_plan",
    "stretch",
    "write_plan",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _LAZY:
        value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'nnstretch.stretch' has no attribute {name!r}")
