"""A kernel: what one launch on a processor computes; and what a backend fuses into one, as data."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from operator import attrgetter
from typing import Annotated

from nnstretch.files.limits import Range

WEIGHTED = ("conv", "gconv", "dwconv", "linear")
_ACTIVATION_NAMES = """
    relu relu6 hardtanh silu hardswish hardsigmoid sigmoid gelu elu selu celu leaky_relu prelu mish
    tanh softplus softsign clamp clamp_min clamp_max exp sqrt rsqrt neg pow
"""
ACTIVATIONS = tuple(_ACTIVATION_NAMES.split())

PADDED = "padded"
"""Layout of a kernel that pads its input in a copy."""


@dataclass(frozen=True, slots=True)
class ChannelBlockedLayout:
    """Feature maps in blocks of channels (NCHWc), copied where an operator wants them plain."""

    block: int
    """Channels of a block; groups and concatenated parts must be whole blocks."""
    align: int
    """Channels of a dense or depthwise convolution must be a multiple of it to use blocks."""
    ops: frozenset[str]
    """Operators that keep the layout they read: `relu`, `add`, `gelu`."""


@dataclass(frozen=True, slots=True)
class FusionRules:
    """Which operators a backend fuses behind a kernel, and which layouts it uses."""

    pairs: frozenset[tuple[str, str]]
    """(kind of the kernel, operator that follows)."""
    after_activation: bool = True
    """Whether an operator is fused behind an activation too."""
    blocked: ChannelBlockedLayout | None = None
    copies_padding: bool = False
    """Whether padding other than TFLite's SAME costs a copy of the input."""

    def fuses(self, kind: str, follower: str) -> bool:
        """Return whether an operator is fused behind a kernel of this kind."""
        return (kind, follower) in self.pairs


MOBILE_FUSION = FusionRules(
    frozenset(product(WEIGHTED, ("batch_norm", "add")))
    | frozenset(
        product((*WEIGHTED, "add", "mul", "norm", "matmul"), (*ACTIVATIONS, "scale", "shift"))
    )
)
"""Fusion of mobile runtimes to a good first approximation; the operator lists of `mi9` use it.

`scale` and `shift` are products and sums with a number or a weight.
"""

_KEY_FIELDS = """
    kind op epilogue cin cout hw_in hw_out kernel stride groups batch macs
    read_elements write_elements weight_elements shapes_in shape_out layout window
"""
key_of = attrgetter(*_KEY_FIELDS.split())


WorkCount = Annotated[int, Range(0, 1 << 53)]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch on a processor: an operator with the cheap ones fused behind it."""

    name: str
    """Name of its first node."""
    kind: str
    """conv, gconv, dwconv, linear, pool, gap, add, mul, concat, norm, ..., else the operator."""
    cin: WorkCount
    cout: WorkCount
    hw_in: WorkCount
    """Pixels of the input (height x width) or its tokens; 1 after the head."""
    hw_out: WorkCount
    kernel: WorkCount
    """Side of the window, the larger where it is not square; 1 where there is none."""
    stride: WorkCount
    groups: WorkCount
    batch: WorkCount
    macs: WorkCount
    read_elements: WorkCount
    """Elements of activations read; weights are counted apart."""
    write_elements: WorkCount
    weight_elements: WorkCount
    nodes: tuple[str, ...] = ()
    """Everything fused into it, in execution order."""
    op: str = ""
    """PyTorch's name of its main operator: `conv2d`, `max_pool2d`; empty where unknown."""
    epilogue: tuple[str, ...] = ()
    """Operators fused behind it, in order, without a batch norm folded into the weights."""
    shapes_in: tuple[tuple[int, ...], ...] = ()
    """Shapes of the activations it reads, in the order of its arguments; empty where unknown."""
    shape_out: tuple[int, ...] = ()
    layout: str = ""
    """`blocked` for blocks of channels (NCHWc), `padded` for a copy that pads; else empty."""
    window: tuple[int, ...] = ()
    """Sides of a pool's window that is not square; else empty."""

    @property
    def key(self) -> tuple[object, ...]:
        """Return what the latency depends on: everything but the names in the network."""
        return key_of(self)
