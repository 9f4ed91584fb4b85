"""Sub-graphs bound to fixed memory: between two of them nothing is copied or looked up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np

from nnstretch.bundle.manifest import Manifest, Port
from nnstretch.protocols import Backend, BindableBackend
from nnstretch.run.in_place_merge import in_place_merges, slice_view
from nnstretch.schedule.executors.static import Call

ALIGNED_BYTES = 64
"""A line of the cache, and what runtimes ask of their own memory."""


class BoundNetwork:
    """One set of tensors for a whole network, which sub-graphs read and write at each call.

    Branches write their part of the tensor at their meeting point, so most merges have nothing
    to do. It serves one request at a time; `results` copies what a request is to keep.
    """

    def __init__(self, manifest: Manifest, backends: Mapping[str, Backend]) -> None:
        """Bind sub-graphs to memory; `backends` by the names of sub-graphs."""
        self._inputs, self._outputs = _names(manifest.inputs), _names(manifest.outputs)
        self.met = in_place_merges(manifest, backends)
        """The merges with nothing left to do, and the axis along which their parts lie."""
        self._memory = allocate_all(manifest, self.met)
        self.calls: dict[str, Call] = {}
        """By sub-graph."""
        for sub in manifest.subgraphs:
            reads = {port.name: self._memory[port.name] for port in sub.inputs}
            writes = [self._memory[port.name] for port in sub.outputs]
            self.calls[sub.name] = (
                no_merge if sub.name in self.met else bind(backends[sub.name], reads, writes)
            )

    def enter(self, values: Mapping[str, np.ndarray]) -> None:
        """Copy in the next request's inputs, as `LoadedNetwork.inputs` returns them."""
        for name in self._inputs:
            np.copyto(self._memory[name], values[name], casting="no")

    def results(self) -> dict[str, np.ndarray]:
        """Return the network's outputs by name, in arrays that are new every time."""
        return {name: self._memory[name].copy() for name in self._outputs}


def allocate_all(manifest: Manifest, met: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Return memory of every tensor; inputs of merges in `met` are views of their output."""
    memory = {port.name: allocate(port) for port in manifest.inputs}
    for sub in reversed(manifest.subgraphs):  # a meeting point may be part of a later one
        for port in sub.outputs:
            if port.name not in memory:
                memory[port.name] = allocate(port)
        begin = 0
        for port in sub.inputs if sub.name in met else ():
            size = port.spec.shape[met[sub.name]]
            memory[port.name] = slice_view(memory[sub.outputs[0].name], met[sub.name], begin, size)
            begin += size
    return memory


def no_merge() -> None:
    """Do nothing: stands for a merge whose inputs were written in place."""


def bind(backend: Backend, reads: Mapping[str, np.ndarray], writes: Sequence[np.ndarray]) -> Call:
    """Return a call that runs a sub-graph on these arrays; copies where binding is unsupported."""
    if isinstance(backend, BindableBackend):
        return backend.bind(reads, writes)

    def call() -> None:
        for memory, output in zip(writes, backend.run(reads), strict=True):
            np.copyto(memory, output, casting="no")

    return call


def allocate(port: Port) -> np.ndarray:
    """Return memory for a tensor, with nothing in it yet."""
    kind = np.dtype(port.spec.dtype)
    size_bytes = prod(port.spec.shape) * kind.itemsize
    raw = np.empty(size_bytes + ALIGNED_BYTES, np.uint8)
    skip = -raw.ctypes.data % ALIGNED_BYTES
    return raw[skip : skip + size_bytes].view(kind).reshape(port.spec.shape)


def _names(ports: Iterable[Port]) -> tuple[str, ...]:
    return tuple(port.name for port in ports)
