"""Copies between channel-blocked and plain tensors, for runtimes that keep feature maps in blocks
(NCHWc).

The rules were read off the optimised graphs of ONNX Runtime 1.31 (`profile/fusion_report.py` prints
them again): a convolution works on blocks where its channels allow it; sums, activations and
concatenations keep the layout they find; everything else wants plain tensors.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from nnstretch.graph import Graph
from nnstretch.kernel import ChannelBlockedLayout, Kernel

BLOCKED, PLAIN = "blocked", "plain"


def insert_layout_conversions(
    graph: Graph,
    kernels: tuple[Kernel, ...],
    blocked: ChannelBlockedLayout,
    entry: str = PLAIN,
    leave: bool = False,
) -> tuple[tuple[Kernel, ...], dict[str, str]]:
    """Return the kernels with the copies each needs before it, one per value and direction, and all
    layouts.

    `entry` is the layout of the graph's inputs; `leave` hands outputs over in the layout they have.
    """
    specs, owner = graph.specs(), {name: kernel for kernel in kernels for name in kernel.nodes}
    readers = {node.name: node.inputs for node in graph.nodes}
    layout: dict[str, str] = {
        value.name: entry for value in graph.inputs if len(value.spec.shape) == 4
    }
    have: set[tuple[str, str]] = set()
    found: list[Kernel] = []

    def copy(value: str, wanted: str) -> None:
        shape = specs[value].shape
        if layout.get(value, PLAIN) != wanted and len(shape) == 4 and (value, wanted) not in have:
            have.add((value, wanted))
            found.append(reorder_kernel(value, shape, wanted))

    for kernel in kernels:
        members = set(kernel.nodes)
        values = dict.fromkeys(
            v
            for n in kernel.nodes
            for v in readers[n]
            if v not in members and (v in owner or is_input(graph, v))
        )
        reads, writes = kernel_layouts(kernel, [layout.get(v, PLAIN) for v in values], blocked)
        for value in values:
            copy(value, reads)
        found.append(replace(kernel, layout=writes) if writes == BLOCKED else kernel)
        for name in kernel.nodes:
            layout[name] = writes
        if writes == BLOCKED and any(
            specs[name].shape != kernel.shape_out for name in kernel.nodes[-1:]
        ):
            copy(kernel.nodes[0], PLAIN)
            layout[kernel.nodes[-1]] = PLAIN
    for name in () if leave else graph.outputs:
        copy(name, PLAIN)
    return tuple(found), layout


def is_input(graph: Graph, name: str) -> bool:
    """Return whether a name is an input of the graph."""
    return any(value.name == name for value in graph.inputs)


def kernel_layouts(
    kernel: Kernel, layouts: list[str], blocked: ChannelBlockedLayout
) -> tuple[str, str]:
    """Return layouts that a kernel reads and writes, from those of the values it is given."""
    if kernel.kind == "conv":
        if kernel.cin < blocked.block:
            return PLAIN, BLOCKED
        return (BLOCKED, BLOCKED) if kernel.cin % blocked.align == 0 else (PLAIN, PLAIN)
    if kernel.kind == "dwconv":
        return (
            (BLOCKED, BLOCKED)
            if kernel.cin % blocked.align == 0 and kernel.cin == kernel.cout
            else (PLAIN, PLAIN)
        )
    if kernel.kind == "gconv":
        whole = (kernel.cin // kernel.groups) % blocked.block == 0 and (
            kernel.cout // kernel.groups
        ) % blocked.block == 0
        return (BLOCKED, BLOCKED) if whole else (PLAIN, PLAIN)
    if kernel.kind == "pool" and "adaptive" not in kernel.op:
        return (BLOCKED, BLOCKED) if kernel.cin % blocked.block == 0 else (PLAIN, PLAIN)
    if kernel.kind == "concat":
        whole = kernel.op != "stack" and all(
            len(shape) == 4 and shape[1] % blocked.block == 0 for shape in kernel.shapes_in
        )
        return (
            (BLOCKED, BLOCKED)
            if whole and all(layout == BLOCKED for layout in layouts)
            else (PLAIN, PLAIN)
        )
    if (
        kernel.op in blocked.ops
        and all(layout == BLOCKED for layout in layouts)
        and len(set(kernel.shapes_in)) == 1
    ):
        return BLOCKED, BLOCKED
    return PLAIN, PLAIN


def reorder_kernel(value: str, shape: tuple[int, ...], wanted: str) -> Kernel:
    """Return a copy of one feature map; no node of the graph stands for it."""
    elements, pixels = prod(shape), prod(shape[2:])
    return Kernel(
        name=f"{value}.to_{wanted}",
        kind="reorder",
        cin=shape[1],
        cout=shape[1],
        hw_in=pixels,
        hw_out=pixels,
        kernel=1,
        stride=1,
        groups=1,
        batch=shape[0],
        macs=0,
        read_elements=elements,
        write_elements=elements,
        weight_elements=0,
        op=f"to_{wanted}",
        shapes_in=(shape,),
        shape_out=shape,
    )
