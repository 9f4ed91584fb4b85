"""Graph -> kernels: which nodes become one launch on a processor.

What joins a kernel is data (`FusionRules`): mobile runtimes let a convolution take the batch norm,
the activation and the residual sum behind it along. What only renames data is free. A rule never
looks at module names. An operator without a rule becomes a kernel of its own name, so that a
predictor refuses it instead of counting it as zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from nnstretch.graph import Argument, Graph, Node, TensorSpec, ValueRef, refs
from nnstretch.kernel import ACTIVATIONS, MOBILE_FUSION, PADDED, FusionRules, Kernel
from nnstretch.structure.layout_conversion import PLAIN, insert_layout_conversions
from nnstretch.structure.macs import CONVOLUTIONS
from nnstretch.structure.padding import padded_as_same

SHAPE_ONLY = frozenset({"sym_size", "size", "dim", "numel"})
"""They read a shape, not data, so they neither cost anything nor keep two nodes from fusing."""

FREE = SHAPE_ONLY | {
    *(
        "view",
        "_unsafe_view",
        "reshape",
        "flatten",
        "unflatten",
        "squeeze",
        "unsqueeze",
        "expand",
        "expand_as",
        "getitem",
    ),
    *(
        "dropout",
        "feature_dropout",
        "alpha_dropout",
        "contiguous",
        "alias",
        "detach",
        "identity",
        "lift_fresh_copy",
        "to",
        "_to_copy",
    ),
    *(
        "type_as",
        "view_as",
        "reshape_as",
        "clone",
        "ones",
        "zeros",
        "full",
        "arange",
        "empty",
        "scalar_tensor",
    ),
}
KINDS = {
    **dict.fromkeys(ACTIVATIONS, "activation"),
    **dict.fromkeys(("linear", "addmm"), "linear"),
    **dict.fromkeys(
        (
            "max_pool1d",
            "max_pool2d",
            "max_pool2d_with_indices",
            "avg_pool1d",
            "avg_pool2d",
            "adaptive_max_pool2d",
        ),
        "pool",
    ),
    **dict.fromkeys(("adaptive_avg_pool2d", "adaptive_avg_pool1d"), "pool"),
    **dict.fromkeys(("mean", "sum", "amax"), "gap"),
    **dict.fromkeys(("add", "sub", "rsub"), "add"),
    **dict.fromkeys(("mul", "div"), "mul"),
    **dict.fromkeys(("cat", "concat", "stack"), "concat"),
    **dict.fromkeys(
        (
            "batch_norm",
            "layer_norm",
            "group_norm",
            "instance_norm",
            "rms_norm",
            "linalg_vector_norm",
        ),
        "norm",
    ),
    **dict.fromkeys(("matmul", "bmm", "mm", "einsum", "scaled_dot_product_attention"), "matmul"),
    **dict.fromkeys(("softmax", "_softmax", "log_softmax"), "softmax"),
    **dict.fromkeys(
        (
            "permute",
            "transpose",
            "t",
            "chunk",
            "split",
            "split_with_sizes",
            "slice",
            "unbind",
            "select",
        ),
        "reshape",
    ),
    **dict.fromkeys(
        (
            "roll",
            "pad",
            "constant_pad_nd",
            "pixel_shuffle",
            "pixel_unshuffle",
            "channel_shuffle",
            "repeat",
            "flip",
        ),
        "reshape",
    ),
    **dict.fromkeys(
        ("index_select", "index", "unfold", "im2col", "numpy_T", "swapaxes", "movedim", "tile"),
        "reshape",
    ),
    "upsample_nearest2d": "reshape",
}


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
    """Return kernels such that every node that works on data is in exactly one of them.

    Kernels in an order in which they can run.

    Where the rules know a blocked layout, copies between layouts are kernels, too, without a node
    of their own: from the layout in which the graph is `entry`d, and back to plain at its outputs
    unless they are to `leave` as they are.
    """
    kernels = KernelFuser(graph, rules).run()
    return (
        insert_layout_conversions(graph, kernels, rules.blocked, entry, leave)[0]
        if rules.blocked
        else kernels
    )


def value_layouts(graph: Graph, rules: FusionRules) -> dict[str, str]:
    """Return the layout of every value; empty where the rules know one only."""
    return (
        insert_layout_conversions(graph, KernelFuser(graph, rules).run(), rules.blocked)[1]
        if rules.blocked
        else {}
    )


class KernelFuser:
    """Fusion of a graph's nodes into kernels under a backend's rules."""

    def __init__(self, graph: Graph, rules: FusionRules = MOBILE_FUSION) -> None:
        self.graph = graph
        self.rules = rules
        self.specs = graph.specs()
        self.weights = {weight.name for weight in graph.weights}
        """And what is computed from weights alone, once and for all before deployment."""
        self.readers = {
            name: sum(reader.kind not in SHAPE_ONLY for reader in readers)
            for name, readers in graph.consumers().items()
        }
        self.padded = padded_as_same(graph) if rules.copies_padding else {}
        """Operators that are left to the convolution behind them."""
        self.launches: list[OpenKernel] = []
        self.home: dict[str, int] = {}
        """Which launch writes a value; graph inputs and weights have none."""

    def run(self) -> tuple[Kernel, ...]:
        """Fuse the graph and return its kernels."""
        for node in self.graph.nodes:
            self.place(node)
        return tuple(self.describe(launch) for launch in self.launches)

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
        if free and latest is None:
            return
        if latest is not None and (free or self.joins(node, values, latest)):
            self.join(node, values, latest, free)
            return
        self.home[node.name] = len(self.launches)
        pads = [self.padded[name] for name in values if name in self.padded]
        self.launches.append(OpenKernel(self.kind(node), [*pads, node], node.name, [node]))

    def changes_nothing(self, node: Node) -> bool:
        """Return whether an adaptive pool is over a map that has its size already."""
        return (
            node.kind.startswith("adaptive")
            and node.output.shape == self.specs[node.inputs[0]].shape
        )

    def join(self, node: Node, values: list[str], home: int, free: bool) -> None:
        """Add a node to an open kernel."""
        launch = self.launches[home]
        if not free or (launch.tail in values and self.only_reader(launch.tail)):
            launch.tail = launch.tail if node.kind in SHAPE_ONLY else node.name
        launch.nodes.append(node)
        if not free:
            launch.work.append(node)
        self.home[node.name] = home

    def only_reader(self, value: str) -> bool:
        """Return whether a value is read once and is no output."""
        return self.readers.get(value, 0) == 1 and value not in self.graph.outputs

    def joins(self, node: Node, values: list[str], home: int) -> bool:
        """Return whether the latest launch can go on with this node.

        Everything else it reads exists by then.
        """
        launch = self.launches[home]
        if launch.tail not in values or not self.only_reader(launch.tail):
            return False
        others = [name for name in values if name != launch.tail]
        if (
            any(self.home.get(name) == home for name in others)
            or node.output.shape != self.specs[launch.tail].shape
        ):
            return False
        if not self.rules.after_activation and any(
            member.kind in ACTIVATIONS for member in launch.work
        ):
            return False
        kind = self.kind(node)
        if kind in ("activation", "norm"):
            return not others and self.rules.fuses(launch.kind, node.kind)
        if kind in ("add", "mul") and not others and refs_once(node):
            return self.rules.fuses(launch.kind, "shift" if kind == "add" else "scale")
        same = all(self.specs[name].shape == node.output.shape for name in others)
        return kind == "add" and len(others) == 1 and same and self.rules.fuses(launch.kind, "add")

    def kind(self, node: Node) -> str:
        """Return the kind of kernel that a node opens."""
        if node.kind in CONVOLUTIONS:
            groups, cin = conv_groups(node), self.specs[node.inputs[0]].shape[1]
            return "conv" if groups == 1 else "dwconv" if groups == cin else "gconv"
        if node.kind == "einsum" and "." in str(node.args[0]):
            return node.op
        kind = KINDS.get(node.kind, node.op)
        if kind == "pool" and node.kind.startswith("adaptive") and prod(node.output.shape[2:]) == 1:
            return "gap"
        return kind

    def describe(self, launch: OpenKernel) -> Kernel:
        """Return an open kernel with its counts."""
        first, last = launch.work[0], launch.work[-1]
        names = {node.name for node in launch.nodes} - self.padded.keys()
        values = dict.fromkeys(
            self.source(name)
            for node in launch.work
            for name in node.inputs
            if name not in self.weights | names
        )
        kernel = Kernel(
            name=first.name,
            kind=launch.kind,
            **self.dimensions(first, launch.kind),
            batch=batch_of(first.output),
            macs=sum(node.macs for node in launch.work),
            read_elements=sum(self.specs[name].elements for name in values),
            write_elements=sum(spec.elements for spec in last.outputs),
            weight_elements=self.weight_elements(launch.work),
            nodes=tuple(node.name for node in launch.nodes),
            op=first.kind,
            epilogue=tuple(
                self.follower(node) for node in launch.work[1:] if node.kind != "batch_norm"
            ),
            shapes_in=tuple(self.specs[name].shape for name in values),
            shape_out=last.output.shape,
        )
        if self.rules.copies_padding and is_padded(first, kernel):
            return replace(kernel, layout=PADDED)
        return (
            replace(kernel, macs=kernel.macs + product_macs(first, self.specs))
            if launch.kind == "matmul"
            else kernel
        )

    def source(self, name: str) -> str:
        """Return the map before it was padded."""
        return self.padded[name].inputs[0] if name in self.padded else name

    def follower(self, node: Node) -> str:
        """Return `add` for a residual sum.

        A sum with a number or a weight is a `shift`, a product with one a `scale`.
        """
        kind, tensors = self.kind(node), sum(name not in self.weights for name in node.inputs)
        return (
            {"add": "shift", "mul": "scale"}.get(kind, node.kind)
            if tensors == 1 and refs_once(node)
            else node.kind
        )

    def dimensions(self, node: Node, kind: str) -> dict[str, Any]:
        """Return channels, pixels and window of the node that gives a kernel its kind."""
        read = next((name for name in node.inputs if name not in self.weights), node.inputs[0])
        source = self.specs[self.source(read)]
        window, stride, groups = 1, 1, 1
        cin, cout = channels(source), channels(node.output)
        if kind in ("conv", "gconv", "dwconv"):
            window, stride = (
                max(self.specs[node.inputs[1]].shape[2:]),
                largest_side(argument(node, 3), 1),
            )
            groups, cin, cout = conv_groups(node), source.shape[1], node.output.shape[1]
        elif kind in ("linear", "matmul"):
            cin, cout = source.shape[-1], node.output.shape[-1]
        elif kind == "pool":
            window = largest_side(argument(node, 1), 1) if "adaptive" not in node.kind else 1
            stride = largest_side(argument(node, 2), window) if "adaptive" not in node.kind else 1
        hw_in, hw_out = pixels(source, cin), pixels(node.output, cout)
        return {
            "cin": cin,
            "cout": cout,
            "hw_in": hw_in,
            "hw_out": hw_out,
            "kernel": window,
            "stride": stride,
            "groups": groups,
        }

    def weight_elements(self, nodes: list[Node]) -> int:
        """Count weights as deployed.

        A batch norm behind a convolution leaves only one bias per channel.
        """
        names = dict.fromkeys(
            n
            for node in nodes
            if node.kind != "batch_norm"
            for n in node.inputs
            if n in self.weights
        )
        biased = {node.kind for node in nodes} & CONVOLUTIONS and len(nodes[0].inputs) > 2
        folded = sum(
            node.output.shape[1] for node in nodes if node.kind == "batch_norm" and not biased
        )
        return sum(self.specs[name].elements for name in names) + folded


def is_free(node: Node) -> bool:
    """Return whether a node is free: a view, or Python arithmetic on shapes."""
    return node.kind in FREE or node.op.startswith(("py.", "sym_"))


def refs_once(node: Node) -> bool:
    """Return False for `x + x`, which reads one value through two arguments."""
    return sum(isinstance(item, ValueRef) for item in node.args) == len(node.inputs)


def argument(node: Node, position: int) -> Argument:
    """Return an argument by position; None where it is left out."""
    return node.args[position] if position < len(node.args) else None


def is_padded(node: Node, kernel: Kernel) -> bool:
    """Return whether a strided window has more padding than it needs on one end.

    Where both ends need it, runtimes pad as they go.
    """
    if (
        kernel.kind not in ("conv", "gconv", "dwconv", "pool")
        or kernel.stride < 2
        or len(kernel.shape_out) != 4
    ):
        return False
    padding = largest_side(argument(node, 3 if kernel.kind == "pool" else 4), 0)
    needed = (kernel.shape_out[-1] - 1) * kernel.stride + kernel.kernel - kernel.shapes_in[0][-1]
    return padding > 0 and needed != 2 * padding


def conv_groups(node: Node) -> int:
    """Return the groups of a convolution."""
    groups = argument(node, 6)
    return groups if isinstance(groups, int) else 1


def largest_side(value: Argument, otherwise: int) -> int:
    """Return the larger side of a window or stride that may be one number, a pair, or missing."""
    sides = [
        side for side in (value if isinstance(value, tuple) else (value,)) if isinstance(side, int)
    ]
    return max(sides, default=otherwise) or otherwise


def batch_of(spec: TensorSpec) -> int:
    """Return the batch of a tensor."""
    return spec.shape[0] if spec.shape else 1


def channels(spec: TensorSpec) -> int:
    """Return the channels of NCHW maps, NLC tokens and NC vectors."""
    return spec.shape[1] if len(spec.shape) >= 4 else spec.shape[-1] if spec.shape else 1


def pixels(spec: TensorSpec, width: int) -> int:
    """Return the pixels or tokens of a tensor of this width."""
    return max(1, spec.elements // max(1, batch_of(spec) * width))


def product_macs(node: Node, specs: dict[str, TensorSpec]) -> int:
    """Return work of a product of two activations, which MAC counts by convention leave out."""
    if node.kind == "einsum":
        letters = str(node.args[0]).replace(" ", "").split("->")[0].split(",")
        operands = [name for item in node.args[1:] for name in refs(item)]
        terms = [
            zip(term, specs[name].shape, strict=True)
            for term, name in zip(letters, operands, strict=True)
        ]
        return prod({letter: size for term in terms for letter, size in term}.values())
    if node.kind == "scaled_dot_product_attention":
        query, key, value = (specs[name] for name in (node.inputs * 3)[:3])
        return (
            query.elements * key.shape[-2]
            + prod(query.shape[:-1]) * key.shape[-2] * value.shape[-1]
        )
    return node.output.elements * specs[node.inputs[0]].shape[-1]
