"""What is to be exported, and the sub-graphs it falls into, before any of them has a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol, cast

import torch
from torch import nn

from nnstretch.bundle.image_task import ImageTask
from nnstretch.bundle.manifest import FORMATS
from nnstretch.capture.checks.random_operators import check_repeatable
from nnstretch.capture.example_inputs import random_input
from nnstretch.errors import BadInput
from nnstretch.export.int8_accuracy import LabeledBatches
from nnstretch.graph import TensorSpec
from nnstretch.plan import Plan, Segment
from nnstretch.soc import Soc, host_of
from nnstretch.trial import AlternativeEstimates, SegmentCost, Trial

Progress = Callable[[int, int, str], None]
Tensors = Mapping[str, torch.Tensor]
"""What flows between sub-graphs in one inference, by its name in the whole network."""
OUTPUT = "output"


class SegmentModule(Protocol):
    """A segment of a stretched network (stretch/weights/branched_module.py)."""

    axis: int
    branches: nn.ModuleList

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the sub-graph's outputs."""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """A stretched network and the form in which it leaves PyTorch.

    Raises BadInput for what does not go together, UnsupportedOp for a network that draws random
    numbers.
    """

    module: nn.Module
    plan: Plan
    format: str = "onnx"
    int8: bool = False
    calibration: Iterable[torch.Tensor] | None = None
    """Inputs on which ranges are measured, each of the plan's input shape; read once."""
    trial: Trial | None = None
    soc: Soc | None = None
    seed: int = 0
    """Of the random input on which files are compared with the module.

    Int8 is compared on calibration inputs.
    """
    progress: Progress | None = None
    least_snr_db: float | None = None
    """Signal-to-noise ratio that int8 must reach; None asks for that of a sound network."""
    held_out: LabeledBatches | None = None
    """Images whose labels judge int8 instead, where the network knows their classes."""
    max_drop: float | None = None
    """Points of accuracy that int8 may lose on them; None allows one."""
    image_task: ImageTask | None = None
    """How the network sees images and what its scores stand for, where that is known."""

    def __post_init__(self) -> None:
        if len(self.segments) != len(self.plan.segments):
            raise BadInput(
                f"module has {len(self.segments)} segments and its plan {len(self.plan.segments)},"
                f" export of {self.plan.model}, stretch the module with this plan first"
            )
        lowered = getattr(self.module, "lowered", None)
        for name, owner in (("module", lowered), ("trial", self.trial)):
            if owner is not None and not is_same_plan(owner.plan, self.plan):
                raise BadInput(
                    f"{name} is of another plan, export of {self.plan.model}, needed is the one"
                    " that is exported"
                )
        self.check_chip()
        for segment in lowered.segments if lowered is not None else ():
            for branch in segment.branches:
                check_repeatable(branch.graph, self.plan.model)
        if self.format not in FORMATS:
            raise BadInput(
                f"unknown format {self.format}, export of {self.plan.model}, it is one of"
                f" {', '.join(FORMATS)}"
            )
        if self.int8 and self.format != "litert":
            raise BadInput(
                f"int8 of format {self.format}, export of {self.plan.model}, only litert has it"
            )
        kinds = {str(weight.dtype) for weight in self.module.parameters()} - {"torch.float32"}
        if kinds:
            raise BadInput(
                f"weights are {min(kinds)}, export of {self.plan.model}, needed are those of"
                " float32, as module.float() makes them"
            )
        self.check_calibration()

    def check_calibration(self) -> None:
        """Check that int8, and nothing else, has inputs to be calibrated on. Raises BadInput."""
        if self.int8:
            check_int8_input(self.input_spec, self.plan.model)
        if self.int8 and self.calibration is None:
            raise BadInput(
                f"int8 without calibration inputs, export of {self.plan.model}, ranges of"
                " activations are measured on them"
            )
        if self.calibration is not None and not self.int8:
            raise BadInput(
                f"calibration inputs without int8, export of {self.plan.model}, nothing else is"
                " measured on them"
            )

    def check_chip(self) -> None:
        """Check that the trial is of the chip. Raises BadInput."""
        trial, soc = self.trial, self.soc
        if trial is not None and soc is not None and trial.soc not in ("", soc.name):
            raise BadInput(
                f"trial is of chip {trial.soc} and soc is {soc.name}, export of"
                f" {self.plan.model}, predict the plan on the chip that it is exported for"
            )

    @property
    def segments(self) -> Sequence[SegmentModule]:
        """Return the branched segments of the module."""
        return cast("Sequence[SegmentModule]", list(getattr(self.module, "segments", ())))

    @property
    def input_spec(self) -> TensorSpec:
        """Return shape and type of what the network reads."""
        lowered = getattr(self.module, "lowered", None)
        if lowered:
            spec: TensorSpec = lowered.graph.inputs[0].spec
            return spec
        return TensorSpec(self.plan.input_shape, self.plan.input_dtype or "float32")

    @property
    def example(self) -> torch.Tensor:
        """Draw an input of the plan's shape, by the seed."""
        return random_input(self.input_spec, torch.Generator().manual_seed(self.seed))

    @property
    def host(self) -> str:
        """Return the processor that merges: the chip's CPU, or the first processor of the plan."""
        if self.soc is not None:
            return host_of(self.soc.processors) or self.soc.processors[0].name
        return "cpu" if "cpu" in self.plan.processors else self.plan.processors[0]

    def tell(self, done: int, total: int, what: str) -> None:
        """Report progress to the caller, if wanted."""
        if self.progress is not None:
            self.progress(done, total, what)


def is_same_plan(first: Plan, second: Plan) -> bool:
    """Return whether two plans branch a network of one input alike, whatever they are called."""
    return (first.segments, first.input_shape) == (second.segments, second.input_shape)


def check_int8_input(spec: TensorSpec, model: str) -> None:
    """Check that an input has int8 codes. Raises BadInput where it is of integers."""
    if spec.unusual_dtype:
        raise BadInput(
            f"int8 of a network that reads {spec.dtype}, export of {model}, only float32 inputs"
            " have int8 codes; export it as float32"
        )


@dataclass(frozen=True, slots=True)
class SubgraphSpec:
    """A sub-graph without its file: a branch, or what a meeting point computes."""

    name: str
    processor: str
    segment: int
    sources: tuple[str, ...]
    """Tensors it reads, by their names in the whole network."""
    target: str
    """The tensor it writes."""
    branch: nn.Module | None = None
    """None for a merge, which puts its sources side by side."""
    axis: int = 1
    """Of a merge, in PyTorch's order."""
    predicted_us: float | None = None
    error_us: float | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    """What viewers of the file show."""
    alternatives: AlternativeEstimates = field(default_factory=dict)
    """Predicted on processors that it is not placed on."""

    @property
    def role(self) -> str:
        """Return `branch` or `merge`."""
        return "merge" if self.branch is None else "branch"

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Compute the sub-graph's outputs."""
        return torch.cat(inputs, self.axis) if self.branch is None else self.branch(*inputs)


def subgraph_specs(request: ExportRequest) -> tuple[SubgraphSpec, ...]:
    """Return every sub-graph of the network, in an order in which they can run."""
    specs: list[SubgraphSpec] = []
    for number, (meeting, segment) in enumerate(
        zip(request.segments, request.plan.segments, strict=True)
    ):
        end = OUTPUT if number == len(request.segments) - 1 else segment.end
        cost = request.trial.segments[number] if request.trial else None
        branches = branch_specs(number, meeting, segment, end, cost)
        specs += branches
        if segment.branched:
            specs.append(
                merge_spec(number, meeting.axis, segment, branches, end, request.host, cost)
            )
    return tuple(specs) if request.trial is None else with_alternatives(specs, request.trial)


def with_alternatives(specs: Sequence[SubgraphSpec], trial: Trial) -> tuple[SubgraphSpec, ...]:
    """Return the specs with what the trial predicts for other processors.

    It has one row for each, in the same order.
    """
    rows = list(chain.from_iterable(trial.alternatives))
    return (
        tuple(replace(spec, alternatives=row) for spec, row in zip(specs, rows, strict=True))
        if rows
        else tuple(specs)
    )


def branch_specs(
    number: int, meeting: SegmentModule, segment: Segment, end: str, cost: SegmentCost | None
) -> list[SubgraphSpec]:
    """Return a spec for each branch of a segment."""
    specs = []
    for i, (module, branch) in enumerate(zip(meeting.branches, segment.branches, strict=True)):
        predicted_us = cost.branches[i].latency_us if cost else None
        specs.append(
            SubgraphSpec(
                name=f"s{number}.{branch.processor}",
                processor=branch.processor,
                segment=number,
                sources=(segment.start,),
                target=f"{end}@{branch.processor}" if segment.branched else end,
                branch=module,
                predicted_us=predicted_us,
                error_us=cost.branches[i].error_us if cost else None,
                notes=metadata_of(branch.processor, str(branch), segment, predicted_us),
            )
        )
    return specs


def merge_spec(
    number: int,
    axis: int,
    segment: Segment,
    branches: Sequence[SubgraphSpec],
    end: str,
    host: str,
    cost: SegmentCost | None,
) -> SubgraphSpec:
    """Return the spec of a segment's merge."""
    return SubgraphSpec(
        name=f"s{number}.merge",
        processor=host,
        segment=number,
        sources=tuple(branch.target for branch in branches),
        target=end,
        axis=axis,
        predicted_us=cost.merge_us if cost else None,
        error_us=0.0,
        notes=metadata_of(host, "merge", segment, cost.merge_us if cost else None),
    )


def metadata_of(
    processor: str, branch: str, segment: Segment, predicted_us: float | None
) -> dict[str, str]:
    """Return the metadata that a file carries for people."""
    notes = {"processor": processor, "branch": branch, "segment": str(segment)}
    return notes if predicted_us is None else notes | {"predicted_ms": f"{predicted_us / 1000:.3f}"}


def reference_tensors(specs: Sequence[SubgraphSpec], x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return everything that flows between sub-graphs when the module runs on `x`, the input and
    the output among it.
    """
    values = {specs[0].sources[0]: x}
    for spec in specs:
        values[spec.target] = spec(*(values[source] for source in spec.sources))
    return values
