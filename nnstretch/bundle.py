"""A bundle: exported sub-graphs, and the manifest that says how they hang together.

One `.nns` file is a zip: `manifest.json` and one file per sub-graph. Nothing in it is ever
unpickled, and every file's sha256 is checked before a byte of it is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nnstretch.graph import TensorSpec

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Port:
    """A tensor at the edge of a sub-graph."""

    name: str
    """Name of the tensor in the whole network; two ports of one name are connected."""
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class Subgraph:
    """One file that one processor runs."""

    name: str
    processor: str
    file: str
    """Path inside the bundle."""
    sha256: str
    size_bytes: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    role: str = "branch"
    """branch, or merge for what a meeting point computes."""
    segment: int = 0
    """Which segment of the plan it belongs to, counted from 0."""
    predicted_us: dict[str, float] = field(default_factory=dict)
    """Predicted latency by processor, copies included; empty where no chip was given."""
    error_us: dict[str, float] = field(default_factory=dict)
    max_abs_error: float = 0.0
    """Largest difference from the module, measured at export."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything about a bundle but the weights."""

    model: str
    soc: str | None
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    subgraphs: tuple[Subgraph, ...]
    """In an order in which they can run one after another."""
    max_abs_error: float
    """Whole network against the module, measured at export."""
    sync_us: dict[int, float] = field(default_factory=dict)
    """Predicted synchronisation at the end of each branched segment."""
    plan: str = ""
    """The plan as YAML, for readers and reports."""
    format: int = FORMAT
