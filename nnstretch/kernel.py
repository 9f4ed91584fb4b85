"""What a runtime fuses, and which layouts it keeps tensors in.

Rules as data, one set per backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

WEIGHTED = ("conv", "gconv", "dwconv", "linear")
ACTIVATIONS = (
    *(
        "relu",
        "relu6",
        "hardtanh",
        "silu",
        "hardswish",
        "hardsigmoid",
        "sigmoid",
        "gelu",
        "elu",
        "selu",
        "celu",
        "leaky_relu",
    ),
    *(
        "prelu",
        "mish",
        "tanh",
        "softplus",
        "softsign",
        "clamp",
        "clamp_min",
        "clamp_max",
        "exp",
        "sqrt",
        "rsqrt",
        "neg",
        "pow",
    ),
)


PADDED = "padded"
"""Layout of a kernel that pads its input in a copy of its own."""


@dataclass(frozen=True, slots=True)
class ChannelBlockedLayout:
    """A runtime that keeps feature maps in blocks of channels (NCHWc), and copies where an operator
    wants them plain.
    """

    block: int
    """Channels of a block: grouped convolutions and concatenations must be whole blocks."""
    align: int
    """Channels that a dense or depthwise convolution must be a multiple of to read or write blocks.
    """
    ops: frozenset[str]
    """Kernels that keep whichever layout they read, by operator: `relu`, `add`, `gelu`."""


@dataclass(frozen=True, slots=True)
class FusionRules:
    """Which followers join a kernel, and whether anything joins behind an activation."""

    pairs: frozenset[tuple[str, str]]
    """(kind of the kernel, operator that follows)."""
    after_activation: bool = True
    blocked: ChannelBlockedLayout | None = None
    copies_padding: bool = False
    """Whether a window that pads its map otherwise than TFLite's SAME is copied into a padded map
    first; what SAME says costs nothing.
    """

    def fuses(self, kind: str, follower: str) -> bool:
        """Return whether an operator is fused behind a kernel of this kind."""
        return (kind, follower) in self.pairs


MOBILE_FUSION = FusionRules(
    frozenset(
        {(kind, "batch_norm") for kind in WEIGHTED}
        | {(kind, "add") for kind in WEIGHTED}
        | {
            (kind, op)
            for kind in (*WEIGHTED, "add", "mul", "norm", "matmul")
            for op in (*ACTIVATIONS, "scale", "shift")
        }
    )
)
"""What mobile runtimes do to a good first approximation, and what the op lists of `mi9` were priced
with.

`scale` and `shift` are products and sums with a number or a weight.
"""


key_of = attrgetter(
    "kind",
    "op",
    "epilogue",
    "cin",
    "cout",
    "hw_in",
    "hw_out",
    "kernel",
    "stride",
    "groups",
    "batch",
    "macs",
    "read_elements",
    "write_elements",
    "weight_elements",
    "shapes_in",
    "shape_out",
    "layout",
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch on a processor: an operator with the cheap ones fused behind it."""

    name: str
    """Name of the first node in it."""
    kind: str
    """conv, gconv, dwconv, linear, pool, gap, add, mul, concat, norm, activation, matmul, softmax,
    reshape, or the operator's own name.
    """
    cin: int
    cout: int
    hw_in: int
    """Input pixels (height times width) or tokens; 1 after the head."""
    hw_out: int
    kernel: int
    """Side of the window, the larger where it is not square; 1 where there is none."""
    stride: int
    groups: int
    batch: int
    macs: int
    read_elements: int
    """Activations read; weights apart."""
    write_elements: int
    weight_elements: int
    nodes: tuple[str, ...] = ()
    """Everything fused into it, in execution order."""
    op: str = ""
    """PyTorch's name of the operator that gives it its kind: `conv2d`, `hardswish`, `max_pool2d`.

    Empty where unknown.
    """
    epilogue: tuple[str, ...] = ()
    """Operators fused behind it, in order.

    A batch norm folded into the weights is not there any more.
    """
    shapes_in: tuple[tuple[int, ...], ...] = ()
    """Activations it reads, in the order of its arguments; empty where unknown."""
    shape_out: tuple[int, ...] = ()
    layout: str = ""
    """`blocked` where it works on blocks of channels (NCHWc), `padded` where it pads in a copy of
    its own; empty otherwise.
    """

    @property
    def key(self) -> tuple[object, ...]:
        """Return what the latency depends on: everything but the names in the network."""
        return key_of(self)
