"""A plan and a graph become a stretched network: lowered, estimated, searched and built.

    lowering/   plan + graph -> graph of each branch
    cost/       predicted latency, MACs, parameters
    search/     the exact search
    weights/    torch module, inherited weights
    published/  NN-Stretch's published configurations

Only `weights/` loads torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnstretch._interpreter import lazy_names, make_callable
from nnstretch.files.plan_yaml import read_plan, write_plan
from nnstretch.stretch.lowering.lower import LoweredNetwork, lower, single_processor_plan
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis

if TYPE_CHECKING:
    from nnstretch.stretch.weights.branched_module import StretchedNetwork, stretch

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
_HOME = "weights.branched_module"
__getattr__ = lazy_names(__name__, {"StretchedNetwork": _HOME, "stretch": _HOME})
make_callable(__name__)
