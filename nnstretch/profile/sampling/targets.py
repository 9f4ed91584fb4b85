"""Kernels of networks that somebody wants to be predicted well."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.graph import Graph
from nnstretch.kernel import FusionRules, Kernel
from nnstretch.structure.kernel_fusion import fuse_kernels


def target_kernels(graphs: Sequence[Graph], rules: FusionRules) -> tuple[Kernel, ...]:
    """Return the kernels of networks as a backend fuses them, each once, the most work first."""
    kernels: dict[tuple[object, ...], Kernel] = {}
    for graph in graphs:
        for kernel in fuse_kernels(graph, rules):
            if kernel.shapes_in:
                kernels.setdefault(kernel.key, kernel)
    return tuple(sorted(kernels.values(), key=lambda kernel: -kernel.macs))
