"""What a manifest promises of a file, against what its runtime finds there.

Every difference is one line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose

import numpy as np

from nnstretch.bundle.manifest import Port, Subgraph, describe_port
from nnstretch.errors import BrokenFile, one_line

SCALE_TOLERANCE = 1e-6
"""Files keep scales in float32."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor at the edge of a file, as its runtime describes it."""

    shape: tuple[int | None, ...]
    """None where a dimension is symbolic: it fits any number."""
    dtype: str
    scale: float | None = None
    """What a step of an integer is worth, 0 where it is only an integer.

    None where the runtime does not say.
    """
    zero_point: int = 0

    def matches(self, port: Port) -> bool:
        """Return whether this is the tensor that the manifest speaks of."""
        sizes = len(self.shape) == len(port.spec.shape) and all(
            wanted_size in (None, size)
            for wanted_size, size in zip(self.shape, port.spec.shape, strict=True)
        )
        return (
            sizes and self.dtype == port.spec.dtype and (self.scale is None or self._scaled(port))
        )

    def _scaled(self, port: Port) -> bool:
        return isclose(self.scale or 0.0, port.scale, rel_tol=SCALE_TOLERANCE) and (
            not port.scale or self.zero_point == port.zero_point
        )

    def __str__(self) -> str:
        shape = "x".join("?" if size is None else str(size) for size in self.shape) or "scalar"
        return f"{shape} {self.dtype}" + (
            f", scale {self.scale:g}, zero point {self.zero_point}" if self.scale else ""
        )


def member_label(subgraph: Subgraph, bundle: str) -> str:
    """Return the beginning of every refusal of a file."""
    return f"broken bundle {bundle}, member {subgraph.file}"


def check_names(
    where: str, verb: str, ports: Sequence[Port], found: Mapping[str, TensorInfo]
) -> None:
    """Raise BrokenFile unless the file's tensors, by name, are the ports."""
    if found.keys() != {port.name for port in ports}:
        raise BrokenFile(
            f"{where}, it {verb} {sorted(found)}, the manifest says"
            f" {sorted(port.name for port in ports)}"
        )
    check_order(where, verb, ports, [found[port.name] for port in ports])


def check_order(where: str, verb: str, ports: Sequence[Port], found: Sequence[TensorInfo]) -> None:
    """Raise BrokenFile unless the file's tensors, one after another, are the ports."""
    if len(found) != len(ports):
        raise BrokenFile(f"{where}, it {verb} {len(found)} tensors, the manifest says {len(ports)}")
    for port, tensor in zip(ports, found, strict=True):
        if not tensor.matches(port):
            raise BrokenFile(
                f"{where}, it {verb} {port.name} as {tensor}, the manifest says"
                f" {describe_port(port)}"
            )


def check_outputs(where: str, ports: Sequence[Port], outputs: Sequence[np.ndarray]) -> None:
    """Check outputs: a symbolic dimension may still have come out wrong.

    Raises BrokenFile when shape or dtype differ from the manifest's.
    """
    for port, output in zip(ports, outputs, strict=True):
        spec = port.spec
        if output.shape != spec.shape or output.dtype.name != spec.dtype:
            raise BrokenFile(
                f"{where}, {port.name} came out as {output.shape} {output.dtype}, the manifest says"
                f" {port.spec}"
            )


def first_line(error: BaseException) -> str:
    """Return the first line that says something; runtimes put their own source files before it."""
    lines = [
        line.strip()
        for line in str(error).splitlines()
        if line.strip() and not line.startswith("Exception from src/")
    ]
    return one_line(lines[0])[:200] if lines else type(error).__name__
