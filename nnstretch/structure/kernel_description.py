"""Nodes that became one launch -> a kernel with its dimensions and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from nnstretch.graph import Node, TensorSpec
from nnstretch.kernel import PADDED, Kernel
from nnstretch.structure.arguments import argument, conv_groups, largest_side, sides
from nnstretch.structure.kernel_operators import (
    CHANNELS_FIRST,
    CONV_KINDS,
    TRANSPOSED_KIND,
    kernel_kind,
    refs_once,
)
from nnstretch.structure.macs import CONVOLUTIONS, product_macs

PADDING_KINDS = tuple(kind for kind in CONV_KINDS if kind != TRANSPOSED_KIND)


@dataclass(frozen=True, slots=True)
class KernelDescriber:
    """Facts of a graph that the description of its kernels needs."""

    specs: Mapping[str, TensorSpec]
    weights: AbstractSet[str]
    """Weights, and values computed from weights alone."""
    padded: Mapping[str, Node]
    """Padding operators that are left to the convolution behind them."""
    copies_padding: bool
    axes: Mapping[str, int]
    """Value -> the dimension that holds channels, where a layer says so."""

    def describe(self, kind: str, nodes: Sequence[Node], work: Sequence[Node]) -> Kernel:
        """Return the kernel of `nodes`, of which `work` are not free; the first gives the kind."""
        first = work[0]
        last = work[-1]
        reads = [self.specs[name] for name in self.values_read(nodes, work)]
        macs = sum(node.macs for node in work) + product_macs(first, self.specs)
        followers = [node for node in work[1:] if node.kind != "batch_norm"]
        kernel = Kernel(
            name=first.name,
            kind=kind,
            **self.dimensions(first, kind),
            batch=batch_of(first.output),
            macs=macs,
            read_elements=sum(spec.elements for spec in reads),
            write_elements=sum(spec.elements for spec in last.outputs),
            weight_elements=self.weight_elements(work),
            nodes=tuple(node.name for node in nodes),
            op=first.kind,
            epilogue=tuple(self.follower(node) for node in followers),
            shapes_in=tuple(spec.shape for spec in reads),
            shape_out=last.output.shape,
        )
        if self.copies_padding and is_padded(first, kernel):
            return replace(kernel, layout=PADDED)
        return kernel

    def values_read(self, nodes: Sequence[Node], work: Sequence[Node]) -> list[str]:
        """Return the activations that a kernel reads from outside, each once, before padding."""
        inside = {node.name for node in nodes} - self.padded.keys()
        values: dict[str, None] = {}
        for node in work:
            for name in node.inputs:
                if name not in self.weights and name not in inside:
                    values[self.unpadded(name)] = None
        return list(values)

    def unpadded(self, name: str) -> str:
        """Return the map before it was padded."""
        return self.padded[name].inputs[0] if name in self.padded else name

    def follower(self, node: Node) -> str:
        """Name a fused operator; with a number or weight, a sum is `shift`, a product `scale`."""
        tensors = sum(name not in self.weights for name in node.inputs)
        if tensors == 1 and refs_once(node):
            kind = kernel_kind(node, self.specs)
            return {"add": "shift", "mul": "scale"}.get(kind, node.kind)
        return node.kind

    def dimensions(self, node: Node, kind: str) -> dict[str, Any]:
        """Return channels, pixels and window of the node that gives a kernel its kind."""
        read = next((name for name in node.inputs if name not in self.weights), node.inputs[0])
        source = self.specs[self.unpadded(read)]
        axis: int | None = None
        if kind in ("linear", "matmul"):
            axis = -1
        elif kind in CONV_KINDS or (node.kind in CHANNELS_FIRST and len(source.shape) > 2):
            axis = 1
        elif kind == "gap":
            axis = self.axes.get(read)
        cin = channels(source, axis)
        same_rank = len(node.output.shape) == len(source.shape)
        cout = channels(node.output, axis if kind != "gap" or same_rank else None)
        side, stride = self.window(node, kind)
        return {
            "cin": cin,
            "cout": cout,
            "hw_in": pixels(source, cin),
            "hw_out": pixels(node.output, cout),
            "kernel": side,
            "stride": stride,
            "groups": conv_groups(node) if kind in CONV_KINDS else 1,
            "window": uneven_window(node) if kind == "pool" else (),
        }

    def window(self, node: Node, kind: str) -> tuple[int, int]:
        """Return side and stride of a node's window, 1 and 1 where it has none."""
        if kind in CONV_KINDS:
            return max(self.specs[node.inputs[1]].shape[2:]), largest_side(argument(node, 3), 1)
        if kind == "pool" and "adaptive" not in node.kind:
            side = largest_side(argument(node, 1), 1)
            return side, largest_side(argument(node, 2), side)
        return 1, 1

    def weight_elements(self, nodes: Sequence[Node]) -> int:
        """Count weights as deployed: a batch norm leaves one bias per channel, folded into one."""
        biased = any(node.kind in CONVOLUTIONS for node in nodes) and len(nodes[0].inputs) > 2
        names: set[str] = set()
        folded = 0
        for node in nodes:
            if node.kind != "batch_norm":
                names.update(self.weights & set(node.inputs))
            elif not biased:
                folded += node.output.shape[1]
        return sum(self.specs[name].elements for name in names) + folded


def uneven_window(node: Node) -> tuple[int, ...]:
    """Return the sides of a pool's window where they differ, else nothing."""
    window = () if "adaptive" in node.kind else tuple(sides(argument(node, 1)))
    return window if len(set(window)) > 1 else ()


def is_padded(node: Node, kernel: Kernel) -> bool:
    """Return whether a strided window has more padding than it needs on one end.

    Where both ends need it, runtimes pad as they go.
    """
    if kernel.kind not in (*PADDING_KINDS, "pool") or kernel.stride < 2:
        return False
    if len(kernel.shape_out) != 4:
        return False
    padding = largest_side(argument(node, 3 if kernel.kind == "pool" else 4), 0)
    needed = (kernel.shape_out[-1] - 1) * kernel.stride + kernel.kernel - kernel.shapes_in[0][-1]
    return padding > 0 and needed != 2 * padding


def batch_of(spec: TensorSpec) -> int:
    """Return the batch of a tensor."""
    return spec.shape[0] if spec.shape else 1


def channels(spec: TensorSpec, axis: int | None = None) -> int:
    """Return the channels along an axis; without one those of NCHW maps, NLC tokens, NC vectors."""
    if not spec.shape:
        return 1
    if axis is None:
        axis = 1 if len(spec.shape) >= 4 else -1
    return spec.shape[axis]


def pixels(spec: TensorSpec, width: int) -> int:
    """Return the pixels or tokens of a tensor of this width."""
    return max(1, spec.elements // max(1, batch_of(spec) * width))
