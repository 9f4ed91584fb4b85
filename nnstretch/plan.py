"""A plan: where parallel branches start and meet, on which processors, how deep and wide.

A branch is a thing, not the j-th column of five parallel lists. Numbers are absolute: a plan
is read together with the graph it stretches, and a newcomer can compare it with the original.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Branch:
    """What one processor executes alone between two meeting points."""

    processor: str
    depth: int | str | None = None
    """Blocks in a row: one for the first of a stage plus the repeats kept; `0.5x` a share.

    None keeps the original's.
    """
    width: int | str | None = None
    """Channels at its end, before a `project` merge; inner widths scale alike.

    `0.5x` a share; None keeps the original's.
    """
    inner_ratio: float | None = None
    """Bottleneck or expansion factor of its blocks; None keeps the original's."""
    group_width: int | None = None
    """Channels per group of its grouped convolutions; None keeps the original's."""
    activation: str | None = None
    """relu, silu, ... instead of the main activation; gates keep theirs."""
    width_in: int | None = None
    """`project` only: channels behind the 1x1 convolution that opens the branch.

    None scales the input like `width`.
    """
    width_out: int | None = None
    """`project` only: channels handed to the meeting point.

    None takes an equal share of the original's.
    """

    def __str__(self) -> str:
        return f"{self.processor}:{self.depth or '='}x{self.width or '='}"


@dataclass(frozen=True, slots=True)
class Segment:
    """Branches that start from one tensor and meet in one."""

    start: str
    """Cut it begins behind; `input` for the first."""
    end: str
    """Cut it ends at."""
    branches: tuple[Branch, ...]
    merge: str = "concat"
    """`concat`: outputs side by side; `project`.

    1x1 convolutions in and out keep the original width.
    """

    @property
    def branched(self) -> bool:
        """Return whether the segment has more than one branch."""
        return len(self.branches) > 1

    def __str__(self) -> str:
        merge = "" if not self.branched else f" {self.merge}"
        return f"{self.start} -> {self.end} [{' | '.join(map(str, self.branches))}]{merge}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A stretched network: segments in order, a meeting point at the end of each."""

    model: str
    """The network it stretches, as the command line spells it.

    `torchvision:resnet18`, `net.py:make`, ...
    """
    input_shape: tuple[int, ...]
    """NCHW, with the batch size that latency is meant for."""
    segments: tuple[Segment, ...]
    soc: str | None = None
    """The chip it was made for, where it was made for one."""

    @property
    def processors(self) -> tuple[str, ...]:
        """Return the processors in order of first use."""
        return tuple(dict.fromkeys(b.processor for s in self.segments for b in s.branches))

    def __str__(self) -> str:
        return "\n".join([f"plan {self.model}", *(f"  {segment}" for segment in self.segments)])
