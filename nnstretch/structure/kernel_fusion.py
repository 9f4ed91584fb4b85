"""Graph -> kernels: which nodes become one launch on a processor.

What joins a kernel is data (`FusionRules`): mobile runtimes let a convolution take the batch norm,
the activation and the residual sum behind it along. What only renames data is free. A rule never
looks at module names. An operator without a rule becomes a kernel of its own name, so that a
predictor refuses it instead of counting it as zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nnstretch.graph import Graph, Node
from nnstretch.kernel import ACTIVATIONS, MOBILE_FUSION, FusionRules, Kernel
from nnstretch.structure.channel_rules.channel_axes import channel_axes
from nnstretch.structure.kernel_description import KernelDescriber
from nnstretch.structure.kernel_operators import SHAPE_ONLY, is_free, kernel_kind, refs_once
from nnstretch.structure.layout_conversion import PLAIN, insert_layout_conversions
from nnstretch.structure.padding import padded_as_same


@dataclass(slots=True)
class OpenKernel:
    """A kernel while it still grows."""

    kind: str
    nodes: list[Node]
    tail: str
    """The value it ends in; only what reads exactly this can still join."""
    work: list[Node] = field(default_factory=list)
    """Its nodes without the free ones."""


def fuse_kernels(
    graph: Graph, rules: FusionRules = MOBILE_FUSION, entry: str = PLAIN, leave: bool = False
) -> tuple[Kernel, ...]:
    """Return kernels in an order in which they can run; each node that works on data is in one.

    Where the rules know a blocked layout, copies between layouts are kernels, too, without a node
    of their own: from the layout in which the graph is `entry`d, and back to plain at its outputs
    unless they are to `leave` as they are.
    """
    kernels = KernelFuser(graph, rules).run()
    if rules.blocked is None:
        return kernels
    return insert_layout_conversions(graph, kernels, rules.blocked, entry, leave)


def positions_inside_kernels(graph: Graph, rules: FusionRules = MOBILE_FUSION) -> frozenset[int]:
    """Return positions of nodes at which some kernel has begun and is not over yet."""
    positions = {node.name: i for i, node in enumerate(graph.nodes)}
    inside = set[int]()
    for kernel in KernelFuser(graph, rules).place_nodes():
        places = [positions[node.name] for node in kernel.work]
        inside.update(range(min(places), max(places)))
    return frozenset(inside)


class KernelFuser:
    """Fusion of a graph's nodes into kernels under a backend's rules."""

    def __init__(self, graph: Graph, rules: FusionRules = MOBILE_FUSION) -> None:
        self.graph = graph
        self.rules = rules
        self.specs = graph.specs()
        self.weights = {weight.name for weight in graph.weights}
        """Weights, and values computed from weights alone, once and for all before deployment."""
        self.readers = {
            name: sum(reader.kind not in SHAPE_ONLY for reader in readers)
            for name, readers in graph.consumers().items()
        }
        self.padded = padded_as_same(graph) if rules.copies_padding else {}
        """Padding operators that are left to the convolution behind them."""
        self.launches: list[OpenKernel] = []
        self.home: dict[str, int] = {}
        """Value -> index of the launch that writes it; graph inputs and weights have none."""

    def run(self) -> tuple[Kernel, ...]:
        """Fuse the graph and return its kernels."""
        launches = self.place_nodes()
        reduces = any(launch.kind == "gap" for launch in launches)
        describer = KernelDescriber(
            self.specs,
            self.weights,
            self.padded,
            self.rules.copies_padding,
            channel_axes(self.graph) if reduces else {},
        )
        return tuple(describer.describe(k.kind, k.nodes, k.work) for k in launches)

    def place_nodes(self) -> list[OpenKernel]:
        """Put every node into a kernel, in their order; return the kernels."""
        for node in self.graph.nodes:
            self.place(node)
        return self.launches

    def place(self, node: Node) -> None:
        """Put a node into a kernel: the open one, or a new one."""
        values = [name for name in node.inputs if name not in self.weights]
        if not values:
            self.weights.add(node.name)
            return
        if node.name in self.padded:
            return
        free = is_free(node) or self.changes_nothing(node)
        latest = max((self.home[name] for name in values if name in self.home), default=None)
        if latest is not None and (free or self.joins(node, values, latest)):
            self.join(node, values, latest, free)
        elif not free:
            self.home[node.name] = len(self.launches)
            pads = [self.padded[name] for name in values if name in self.padded]
            kind = kernel_kind(node, self.specs)
            self.launches.append(OpenKernel(kind, [*pads, node], node.name, [node]))

    def changes_nothing(self, node: Node) -> bool:
        """Return whether an adaptive pool is over a map that has its size already."""
        if not node.kind.startswith("adaptive"):
            return False
        return node.output.shape == self.specs[node.inputs[0]].shape

    def join(self, node: Node, values: list[str], home: int, free: bool) -> None:
        """Add a node to an open kernel."""
        launch = self.launches[home]
        continues = not free or (launch.tail in values and self.only_reader(launch.tail))
        if continues and node.kind not in SHAPE_ONLY:
            launch.tail = node.name
        launch.nodes.append(node)
        if not free:
            launch.work.append(node)
        self.home[node.name] = home

    def only_reader(self, value: str) -> bool:
        """Return whether a value is read once and is no output."""
        return self.readers.get(value, 0) == 1 and value not in self.graph.outputs

    def joins(self, node: Node, values: list[str], home: int) -> bool:
        """Return whether the latest launch can go on with a node; all else it reads exists then."""
        launch = self.launches[home]
        if launch.tail not in values or not self.only_reader(launch.tail):
            return False
        if node.output.shape != self.specs[launch.tail].shape:
            return False
        others = [name for name in values if name != launch.tail]
        if any(self.home.get(name) == home for name in others):
            return False
        activated = any(member.kind in ACTIVATIONS for member in launch.work)
        if activated and not self.rules.after_activation:
            return False
        return self.may_follow(node, launch.kind, others)

    def may_follow(self, node: Node, kernel: str, others: list[str]) -> bool:
        """Return whether the rules fuse a node behind a kind of kernel; `others` it also reads."""
        kind = kernel_kind(node, self.specs)
        if kind in ("activation", "norm"):
            return not others and self.rules.fuses(kernel, node.kind)
        if kind in ("add", "mul") and not others and refs_once(node):
            return self.rules.fuses(kernel, "shift" if kind == "add" else "scale")
        if kind != "add" or len(others) != 1 or self.specs[others[0]].shape != node.output.shape:
            return False
        return self.rules.fuses(kernel, "add")
