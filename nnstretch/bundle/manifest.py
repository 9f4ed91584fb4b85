"""What a bundle says of itself: tensors, sub-graphs, plans and a pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Annotated

from nnstretch.bundle.image_task import ImageTask
from nnstretch.errors import BadInput
from nnstretch.files.limits import OneOf, Only, Printable, Range
from nnstretch.graph import TensorSpec
from nnstretch.pipeline import PipelineSpec
from nnstretch.soc import Processor

FORMAT = 2
READABLE_FORMATS = (1, FORMAT)
"""Format 1 lacks `processor_kinds`."""
QUEUE_DEPTH = 2
"""Tasks that a processor takes at once where no chip says how many."""
ROLES = ("branch", "merge")
FORMATS = {"onnx": ".onnx", "litert": ".tflite"}
"""Of a sub-graph's file, and how its name ends."""
LAYOUTS = ("", "NCHW", "NHWC")
MAIN = "main"
"""What the first plan of a bundle is called where it has several."""
MAX_TIME_US = 1e12
"""Eleven days: longer than any sub-graph takes, short enough to add up without overflow."""
TimeUs = Annotated[float, Range(0, below=MAX_TIME_US)]
Layout = Annotated[str, Only(lambda name: name in LAYOUTS, "NCHW, NHWC or nothing")]
MAX_KIND = 40
"""Characters of a kind of processor."""
ProcessorKind = Annotated[
    str, Only(lambda kind: 0 < len(kind) <= MAX_KIND and kind.isprintable(), "a short word")
]


@dataclass(frozen=True, slots=True)
class Port:
    """A tensor at the edge of a sub-graph."""

    name: Printable
    """Name of the tensor in the whole network; two ports of one name are connected."""
    spec: TensorSpec
    """Shape in the order of `layout`."""
    layout: Layout = ""
    """NCHW or NHWC; empty where the tensor is no map."""
    scale: Annotated[float, Range(0, below=1e30)] = 0.0
    """Of integers: real = scale * (q - zero_point); 0 where numbers are as they are stored."""
    zero_point: Annotated[int, Range(-128, 255)] = 0


@dataclass(frozen=True, slots=True)
class Subgraph:
    """One file that one processor runs."""

    name: Printable
    processor: Printable
    file: str
    """Path inside the bundle."""
    sha256: str
    size_bytes: Annotated[int, Range(0)]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    role: Annotated[str, OneOf(ROLES)] = "branch"
    """branch, or merge for what a meeting point computes."""
    format: Annotated[str, OneOf(tuple(FORMATS))] = "onnx"
    """Of the file: one of FORMATS."""
    segment: Annotated[int, Range(0)] = 0
    """Which segment of the plan it belongs to, counted from 0."""
    predicted_us: dict[Printable, TimeUs] = field(default_factory=dict)
    """Predicted latency by processor, copies included; empty where no chip was given.

    Elsewhere than on its own processor, synchronisation is included, too.
    """
    error_us: dict[Printable, TimeUs] = field(default_factory=dict)
    max_abs_error: float = 0.0
    """Largest difference from the module, measured at export."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Return the names of the tensors that it reads."""
        return tuple(port.name for port in self.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Return the names of the tensors that it writes."""
        return tuple(port.name for port in self.outputs)

    @property
    def possible_processors(self) -> tuple[str, ...]:
        """Return its processor, then those it is predicted for, which may be its own again."""
        return self.processor, *self.predicted_us


@dataclass(frozen=True, slots=True)
class Alternative:
    """One more plan of a network; its edges differ from the main plan's at most in scales."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    subgraphs: tuple[Subgraph, ...]
    max_abs_error: float
    sync_us: dict[int, TimeUs] = field(default_factory=dict)
    plan: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything about a bundle but the weights."""

    model: Printable
    soc: Printable | None
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    subgraphs: tuple[Subgraph, ...]
    """In an order in which they can run one after another."""
    max_abs_error: float
    """Whole network against the module, measured at export."""
    sync_us: dict[int, TimeUs] = field(default_factory=dict)
    """Predicted synchronisation at the end of each segment, as the plan places it."""
    plan: str = ""
    """The plan as YAML, for readers and reports."""
    format: int = FORMAT
    alternatives: tuple[Alternative, ...] = ()
    """Further plans, predicted for the same chip; not written where there are none."""
    pipeline: PipelineSpec | None = None
    """How items stream through the sub-graphs; not written where nobody said.

    `inputs` and `outputs` are then those of the sub-graphs.
    """
    processor_kinds: dict[Printable, ProcessorKind] = field(default_factory=dict)
    """Kind of each processor as its chip describes it; absent where no chip was given."""
    image_task: ImageTask | None = None
    """How images become its input and what its scores stand for; not written where unknown."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Return the names of the inputs in order."""
        return tuple(port.name for port in self.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Return the names of the outputs in order."""
        return tuple(port.name for port in self.outputs)

    @property
    def is_predicted(self) -> bool:
        """Return whether any sub-graph has a predicted time."""
        return any(sub.predicted_us for sub in self.subgraphs)

    @property
    def predicted_for(self) -> str | None:
        """Return the chip that times were predicted for; None where there are none, or no name."""
        return self.soc if self.is_predicted else None


def check_predicted_for(name: str, predicted_for: str | None, chip: str | None) -> None:
    """Check that predicted times are of a chip, where both are known. Raises BadInput."""
    if None not in (predicted_for, chip) and predicted_for != chip:
        raise BadInput(
            f"SoC {chip}, {name}, its times were predicted for {predicted_for}; export it for"
            f" {chip}"
        )


def plans_by_name(manifest: Manifest) -> dict[str, Manifest]:
    """Return every plan of a bundle as a manifest, by name; the main one first."""
    alone = replace(manifest, alternatives=())
    keys = [field.name for field in fields(Alternative) if field.name != "name"]
    plans = {MAIN: alone}
    for alternative in manifest.alternatives:
        values = {key: getattr(alternative, key) for key in keys}
        plans[alternative.name] = replace(alone, pipeline=None, **values)
    return plans


def processors_named(manifest: Manifest, names: Iterable[str]) -> tuple[Processor, ...]:
    """Return processors of a bundle, each once, where no chip is at hand to say more of them."""
    processors: list[Processor] = []
    for name in dict.fromkeys(names):
        kind = manifest.processor_kinds.get(name) or undescribed_kind(name)
        processors.append(Processor(name, kind, QUEUE_DEPTH))
    return tuple(processors)


def undescribed_kind(name: str) -> str:
    """Return the kind of a processor of a bundle of format 1, which holds only its name."""
    return "cpu" if name.startswith("cpu") else name


def all_subgraphs(manifest: Manifest) -> tuple[Subgraph, ...]:
    """Return the sub-graphs of all plans."""
    subgraphs = list(manifest.subgraphs)
    for alternative in manifest.alternatives:
        subgraphs += alternative.subgraphs
    return tuple(subgraphs)


def segment_ends(manifest: Manifest) -> dict[int, str]:
    """Return the sub-graph that ends each segment: the merge, else the only branch."""
    members: dict[int, list[Subgraph]] = {}
    for sub in manifest.subgraphs:
        members.setdefault(sub.segment, []).append(sub)
    ends: dict[int, str] = {}
    for segment, subs in members.items():
        if names := [sub.name for sub in subs if sub.role == "merge" or len(subs) == 1]:
            ends[segment] = names[-1]
    return ends


def describe_port(port: Port) -> str:
    """Return shape, type, layout and scale, for messages."""
    scale = f", scale {port.scale:g}, zero point {port.zero_point}" if port.scale else ""
    layout = f" {port.layout}" if port.layout else ""
    return f"{port.spec} {port.spec.dtype}{layout}{scale}"
