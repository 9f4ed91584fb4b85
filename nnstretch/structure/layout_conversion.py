"""Copies between channel-blocked (NCHWc) and plain tensors, for runtimes that use both.

The rules were read off the optimised graphs of ONNX Runtime 1.31 (`scripts/predictors fusion`
prints them again): a convolution works on blocks where its channels allow it; sums, activations and
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
) -> tuple[Kernel, ...]:
    """Return the kernels with the copies that each needs before it.

    There is one copy per value and direction. `entry` is the layout of the graph's inputs; `leave`
    hands outputs over in the layout they have.
    """
    converter = LayoutConverter(graph, kernels, blocked, entry)
    for kernel in kernels:
        converter.add(kernel)
    if not leave:
        for name in graph.outputs:
            converter.copy(name, PLAIN)
    return tuple(converter.kernels)


class LayoutConverter:
    """Walk over kernels in order that knows the layout of every value so far."""

    def __init__(
        self, graph: Graph, kernels: tuple[Kernel, ...], blocked: ChannelBlockedLayout, entry: str
    ) -> None:
        self.blocked = blocked
        self.specs = graph.specs()
        self.reads = {node.name: node.inputs for node in graph.nodes}
        self.activations = set(graph.input_names)
        """Graph inputs and everything that a kernel computes."""
        for kernel in kernels:
            self.activations.update(kernel.nodes)
        maps = [value.name for value in graph.inputs if len(value.spec.shape) == 4]
        self.layout = dict.fromkeys(maps, entry)
        self.copied: set[tuple[str, str]] = set()
        """(value, layout) of the copies so far."""
        self.kernels: list[Kernel] = []

    def add(self, kernel: Kernel) -> None:
        """Add a kernel behind the copies of what it reads."""
        values = self.values_read(kernel)
        layouts = [self.layout.get(value, PLAIN) for value in values]
        reads, writes = kernel_layouts(kernel, layouts, self.blocked)
        for value in values:
            self.copy(value, reads)
        self.kernels.append(replace(kernel, layout=writes) if writes == BLOCKED else kernel)
        self.layout.update(dict.fromkeys(kernel.nodes, writes))
        last = kernel.nodes[-1]
        if writes == BLOCKED and self.specs[last].shape != kernel.shape_out:
            # A free reshape ends the kernel, and it needs a plain tensor.
            self.copy(kernel.nodes[0], PLAIN)
            self.layout[last] = PLAIN

    def values_read(self, kernel: Kernel) -> list[str]:
        """Return the activations that a kernel reads from outside, each once."""
        values: dict[str, None] = {}
        for node in kernel.nodes:
            values.update(dict.fromkeys(self.reads[node]))
        return [v for v in values if v in self.activations and v not in kernel.nodes]

    def copy(self, value: str, wanted: str) -> None:
        """Copy a feature map into a layout, unless it has it or was copied before."""
        shape = self.specs[value].shape
        if len(shape) != 4 or self.layout.get(value, PLAIN) == wanted:
            return
        if (value, wanted) not in self.copied:
            self.copied.add((value, wanted))
            self.kernels.append(reorder_kernel(value, shape, wanted))


def kernel_layouts(
    kernel: Kernel, layouts: list[str], blocked: ChannelBlockedLayout
) -> tuple[str, str]:
    """Return the layouts that a kernel reads and writes, from those of the values it reads."""
    if kernel.kind == "conv" and kernel.cin < blocked.block:
        return PLAIN, BLOCKED
    layout = BLOCKED if works_on_blocks(kernel, layouts, blocked) else PLAIN
    return layout, layout


def works_on_blocks(kernel: Kernel, layouts: list[str], blocked: ChannelBlockedLayout) -> bool:
    """Return whether a kernel reads and writes blocks of channels."""
    if kernel.kind == "conv":
        return kernel.cin % blocked.align == 0
    if kernel.kind == "dwconv":
        return kernel.cin % blocked.align == 0 and kernel.cin == kernel.cout
    if kernel.kind == "gconv":
        widths = (kernel.cin // kernel.groups, kernel.cout // kernel.groups)
        return all(width % blocked.block == 0 for width in widths)
    if kernel.kind == "pool" and "adaptive" not in kernel.op:
        return kernel.cin % blocked.block == 0
    if any(layout != BLOCKED for layout in layouts):
        return False
    if kernel.kind == "concat":
        whole = all(len(s) == 4 and s[1] % blocked.block == 0 for s in kernel.shapes_in)
        return whole and kernel.op != "stack"
    return kernel.op in blocked.ops and len(set(kernel.shapes_in)) == 1


def reorder_kernel(value: str, shape: tuple[int, ...], wanted: str) -> Kernel:
    """Return a copy of one feature map; no node of the graph stands for it."""
    elements = prod(shape)
    pixels = prod(shape[2:])
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
