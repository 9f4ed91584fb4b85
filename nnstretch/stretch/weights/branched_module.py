"""The stretched network as a torch.nn.Module of ordinary layers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from nnstretch.capture import build, trace
from nnstretch.capture.example_inputs import example_input
from nnstretch.capture.model_spec import BUILT_BY_SEED
from nnstretch.capture.rebuild_module import copy_weights
from nnstretch.errors import BadInput
from nnstretch.files.checked import checked
from nnstretch.files.plan_yaml import check_plan
from nnstretch.plan import Plan
from nnstretch.stretch.lowering.lower import LoweredNetwork, LoweredSegment, lower
from nnstretch.stretch.weights.inheritance import inherit_segments


class BranchedSegment(nn.Module):
    """Branches that read one tensor, and the concatenation in which they meet."""

    stands_for: torch.Tensor
    """[merged channels], int64: the original channel that each one inherited, else all in turn."""

    def __init__(self, lowered: LoweredSegment) -> None:
        super().__init__()
        self.axis = lowered.axis
        self.branch_drop = 0.0
        """Probability with which training drops a branch; see `drop_branches`."""
        self.branches = nn.ModuleList(build(branch.graph) for branch in lowered.branches)
        original = lowered.original.specs()[lowered.original.outputs[0]].shape
        width = lowered.output.shape[self.axis] if lowered.output.shape else 1
        turns = torch.arange(width) % (original[self.axis] if original else 1)
        # Not persistent: it follows from plan and original, and weights saved without it must load.
        self.register_buffer("stands_for", turns, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the outputs of the branches and merge them."""
        outputs: list[torch.Tensor] = [branch(x) for branch in self.branches]
        if len(outputs) == 1:
            return outputs[0]
        if self.training and self.branch_drop > 0:
            outputs = drop_branches(outputs, self.branch_drop)
        return torch.cat(outputs, self.axis)


def drop_branches(outputs: list[torch.Tensor], p: float) -> list[torch.Tensor]:
    """Zero outputs [batch, ...] with probability `p` each and scale the others to the expectation.

    Every sample draws for itself: gradients are less noisy than with one draw for the batch, and
    batch norms behind the meeting point see the same mixture in every batch. A sample that would
    lose all its branches keeps one, drawn evenly. Draws come from the processor's global generator,
    so a seed gives the same ones on every device.
    """
    batch = outputs[0].shape[0]
    count = len(outputs)
    drawn = torch.rand(batch, count + 1)
    kept = drawn[:, :count] >= p
    saved = (drawn[:, count] * count).long().clamp_max(count - 1)
    kept |= ~kept.any(1, keepdim=True) & nn.functional.one_hot(saved, count).bool()
    scale = kept / (1 - p + p**count / count)
    # To wait for a card would cost more than to draw.
    columns = scale.to(outputs[0].device, non_blocking=True).unbind(1)
    scaled: list[torch.Tensor] = []
    for output, column in zip(outputs, columns, strict=True):
        scaled.append(output * column.to(output.dtype).reshape(-1, *(1,) * (output.dim() - 1)))
    return scaled


class StretchedNetwork(nn.Module):
    """Segments in a row; branches run one after another here, at once in `nnstretch run`."""

    def __init__(self, lowered: LoweredNetwork) -> None:
        super().__init__()
        self.lowered = lowered
        self.segments = nn.ModuleList(BranchedSegment(segment) for segment in lowered.segments)

    @property
    def plan(self) -> Plan:
        """Return the plan that the module follows."""
        return self.lowered.plan

    def set_branch_drop(self, p: float) -> None:
        """Let training drop each branch with probability `p`, but never all of a segment.

        Evaluation and export never drop. Raises BadInput unless 0 <= p < 1.
        """
        if not 0 <= p < 1:
            raise BadInput(
                f"branch drop-out is {p}, plan of {self.plan.model}, it is a probability from 0 to"
                " below 1"
            )
        for segment in self.segments:
            segment.branch_drop = float(p)  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the segments in a row."""
        for segment in self.segments:
            x = segment(x)
        return x


@checked
def stretch(module: nn.Module, plan: Plan, inherit: bool = True) -> StretchedNetwork:
    """Build the network a plan describes, in training mode.

    With `inherit`, it starts from the weights of `module` (rule: stretch/weights/inheritance.py);
    otherwise from PyTorch's own initialization and the constants of `module`. All its parameters
    are trained, also those that `module` keeps frozen. Raises BadPlan where plan and network
    disagree, CannotCapture where the network is no fixed graph.
    """
    check_plan(plan)
    captured = trace(module, example_input(module, plan), plan.model)
    network = build_module(lower(captured.graph, plan), captured.weights, inherit)
    setattr(network, BUILT_BY_SEED, getattr(module, BUILT_BY_SEED, None))
    return network


def build_module(
    lowered: LoweredNetwork,
    weights: Mapping[str, torch.Tensor] | None = None,
    inherit: bool = True,
) -> StretchedNetwork:
    """Build the network of a lowered plan, in training mode, with inherited weights if any.

    Without `inherit`, only what no training would find is taken from `weights`: tables, masks and
    other constants.
    """
    network = StretchedNetwork(lowered)
    if weights is not None:
        inherited = inherit_segments(lowered, weights, only_constants=not inherit)
        for module, segment, (values, stands_for) in zip(
            network.segments, lowered.segments, inherited, strict=True
        ):
            assert isinstance(module, BranchedSegment)
            if inherit:
                module.stands_for.copy_(stands_for)
            for built, branch, starting in zip(
                module.branches, segment.branches, values, strict=True
            ):
                copy_weights(built, branch.graph, starting)
    return network.train()
