"""What a runtime fuses, and which layouts it keeps tensors in.

Rules as data, one set per backend.
"""

from __future__ import annotations

from dataclasses import dataclass

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
