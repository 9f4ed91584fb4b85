"""The stretched network as a torch.nn.Module of ordinary layers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from nnstretch.capture import build, trace
from nnstretch.capture.build import load
from nnstretch.plan import Plan
from nnstretch.stretch.inherit import inheriting
from nnstretch.stretch.lower import LoweredSegment, Stretched, lower


class Meeting(nn.Module):
    """Branches that read one tensor, and the concatenation in which they meet."""

    def __init__(self, lowered: LoweredSegment) -> None:
        super().__init__()
        self.axis = lowered.axis
        self.branches = nn.ModuleList(build(b.graph) for b in lowered.branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = [branch(x) for branch in self.branches]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, self.axis)


class StretchedNetwork(nn.Module):
    """Segments in a row. Evaluates branches one after another; `nnstretch run` runs them at once."""

    def __init__(self, lowered: Stretched) -> None:
        super().__init__()
        self.lowered = lowered
        self.segments = nn.ModuleList(Meeting(segment) for segment in lowered.segments)

    @property
    def plan(self) -> Plan:
        return self.lowered.plan

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for segment in self.segments:
            x = segment(x)
        return x


def stretch(module: nn.Module, plan: Plan, inherit: bool = True) -> StretchedNetwork:
    """The network a plan describes, in training mode.

    With `inherit`, it starts from the weights of `module` (rule: stretch/inherit.py); otherwise from
    PyTorch's own initialisation. Raises BadPlan where plan and network disagree, CannotCapture where
    the network is no fixed graph.
    """
    captured = trace(module, torch.zeros(plan.input_shape), plan.model)
    return assemble(lower(captured.graph, plan), captured.weights if inherit else None)


def assemble(lowered: Stretched, weights: Mapping[str, torch.Tensor] | None = None) -> StretchedNetwork:
    """The network of a lowered plan, in training mode; it inherits from `weights`, the original's, where they are given."""
    network = StretchedNetwork(lowered)
    if weights is not None:
        for meeting, segment, values in zip(network.segments, lowered.segments, inheriting(lowered, weights), strict=True):
            for built, branch, starting in zip(meeting.branches, segment.branches, values, strict=True):
                load(built, branch.graph, starting)
    return network.train()
