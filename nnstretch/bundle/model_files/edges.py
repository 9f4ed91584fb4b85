"""Tensors at the edge of a file against the ports of its manifest: every difference is one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose

from nnstretch.bundle.manifest import Port, describe_port
from nnstretch.errors import BrokenFile, one_line

NUMBERED = re.compile(r"args_(\d{1,9})")
"""Names that litert-torch gives to inputs; a file may hold them in another order."""
SCALE_TOLERANCE = 1e-6
"""Files keep scales in float32."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor at the edge of a file, as its runtime describes it."""

    shape: tuple[int | None, ...] | None
    """None where the rank is open, and for an axis of open size: they fit no port."""
    dtype: str
    scale: float | None = None
    """What a step of an integer is worth, 0 where it is only an integer.

    None where the runtime does not say.
    """
    zero_point: int = 0

    def matches(self, port: Port) -> bool:
        """Return whether this is the tensor that the manifest speaks of."""
        same = (self.shape, self.dtype) == (port.spec.shape, port.spec.dtype)
        return same and (self.scale is None or self._scaled(port))

    def _scaled(self, port: Port) -> bool:
        return isclose(self.scale or 0.0, port.scale, rel_tol=SCALE_TOLERANCE) and (
            not port.scale or self.zero_point == port.zero_point
        )

    def __str__(self) -> str:
        if self.shape is None:
            return f"a tensor of open rank, {self.dtype}"
        shape = "x".join("?" if size is None else str(size) for size in self.shape) or "scalar"
        return f"{shape} {self.dtype}" + (
            f", scale {self.scale:g}, zero point {self.zero_point}" if self.scale else ""
        )


def check_names(
    where: str, verb: str, ports: Sequence[Port], file_tensors: Mapping[str, TensorInfo]
) -> None:
    """Raise BrokenFile unless the file's tensors, by name, are the ports."""
    if file_tensors.keys() != {port.name for port in ports}:
        raise BrokenFile(
            f"{where}, it {verb} {_listed(file_tensors)}, the manifest says"
            f" {_listed(port.name for port in ports)}"
        )
    check_order(where, verb, ports, [file_tensors[port.name] for port in ports])


def check_read(
    where: str, ports: Sequence[Port], file_tensors: Mapping[str, TensorInfo]
) -> tuple[Port, ...]:
    """Return the ports that a loader kept: it may leave out what no operator reads.

    Raises BrokenFile where one of them is not what the manifest says.
    """
    kept = tuple(port for port in ports if port.name in file_tensors)
    check_names(where, "reads", kept, file_tensors)
    return kept


def check_written(
    where: str, ports: Sequence[Port], runtime_tensors: Mapping[str, TensorInfo]
) -> None:
    """Check what a runtime says that it writes; a size that it leaves open is known once it ran.

    Raises BrokenFile.
    """
    closed = dict(runtime_tensors)
    for port in ports:
        tensor, sizes = runtime_tensors.get(port.name), port.spec.shape
        if tensor is not None and tensor.shape is not None and len(tensor.shape) == len(sizes):
            pairs = zip(tensor.shape, sizes, strict=True)
            shape = tuple(wanted if size is None else size for size, wanted in pairs)
            closed[port.name] = replace(tensor, shape=shape)
    check_names(where, "writes", ports, closed)


def check_order(
    where: str, verb: str, ports: Sequence[Port], file_tensors: Sequence[TensorInfo]
) -> None:
    """Raise BrokenFile unless the file's tensors, one after another, are the ports."""
    if len(file_tensors) != len(ports):
        raise BrokenFile(
            f"{where}, it {verb} {len(file_tensors)} tensors, the manifest says {len(ports)}"
        )
    for port, tensor in zip(ports, file_tensors, strict=True):
        if not tensor.matches(port):
            raise BrokenFile(
                f"{where}, it {verb} {one_line(port.name[:80])} as {tensor}, the manifest says"
                f" {describe_port(port)}"
            )


def _listed(names: Iterable[str]) -> str:
    return one_line(sorted(names))[:200]


def argument_order(names: Sequence[str]) -> list[int]:
    """Return inputs in order: args_0, args_1, ... where every input is named so, else as given."""
    numbers: list[int] = []
    for name in names:
        match = NUMBERED.search(name)
        if match is None:
            return list(range(len(names)))
        numbers.append(int(match[1]))
    return sorted(range(len(names)), key=numbers.__getitem__)
