"""What capturing a network returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from nnstretch.graph import Graph

SizeRange = tuple[float, float]


@dataclass(frozen=True)
class CapturedNetwork:
    """A graph, and the tensors its weights name."""

    graph: Graph
    weights: Mapping[str, torch.Tensor]
    stack_traces: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Value -> the lines of Python that computed it, the network's own first, where known."""
    size_ranges: Mapping[str, tuple[SizeRange, ...]] = field(default_factory=dict)
    """By input of an exported program: what each size may be, at least and at most."""
    output_names: tuple[str, ...] = ()
    """What a file calls the outputs of its graph, in their order; empty where nobody says."""
    notes: tuple[str, ...] = ()
    """In what the graph differs from the module by intent, a sentence each."""
