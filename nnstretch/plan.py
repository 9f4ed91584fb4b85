"""A plan: where parallel branches start and meet, on which processors, how deep and wide.

Numbers are absolute, so that a plan can be compared with the network it stretches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from typing import Annotated

from nnstretch.files.limits import OneOf, Only, Range, is_printable

LARGEST = 1 << 20
LARGEST_RATIO = 64
RATIO = re.compile(r"(\d{1,3}(\.\d{1,6})?|\.\d{1,6})x", re.ASCII)
MERGES = ("concat", "project")


def is_ratio(value: str) -> bool:
    """Return whether a text is a ratio to the original, such as `0.5x`."""
    return RATIO.fullmatch(value) is not None and 0 < float(value[:-1]) <= LARGEST_RATIO


Name = Annotated[str, Only(lambda text: bool(text) and is_printable(text), "a name")]
Count = Annotated[int, Range(1, below=LARGEST)]
Ratio = Annotated[str, Only(is_ratio, "a whole number or a ratio above 0 such as 0.5x")]
Merge = Annotated[str, OneOf(MERGES)]
InnerRatio = (
    Annotated[int, Range(1, LARGEST_RATIO)] | Annotated[float, Range(above=0, most=LARGEST_RATIO)]
)


@dataclass(frozen=True, slots=True)
class Branch:
    """Layers that one processor executes between two meeting points."""

    processor: Name
    depth: Count | Ratio | None = None
    """Blocks: the first of each stage and the repeats kept; `0.5x` a ratio, None the original's."""
    width: Count | Ratio | None = None
    """Channels at its end, before a `project` merge; inner widths scale alike.

    `0.5x` is a ratio; None keeps the original's.
    """
    inner_ratio: InnerRatio | None = None
    """Bottleneck or expansion factor of its blocks; None keeps the original's."""
    group_width: Count | None = None
    """Channels per group of its grouped convolutions; None keeps the original's."""
    activation: Name | None = None
    """relu, silu, ... instead of the main activation; gates keep theirs."""
    width_in: Count | None = None
    """`project` only: channels after the opening 1x1 convolution; None scales like `width`."""
    width_out: Count | None = None
    """`project` only: channels at the meeting point; None for an equal share of the original's."""

    def __str__(self) -> str:
        return f"{self.processor}:{self.depth or '='}x{self.width or '='}"


@dataclass(frozen=True, slots=True)
class Segment:
    """Branches between two meeting points: all read one tensor and meet in one."""

    start: Name
    """Cut it begins behind; `input` for the first."""
    end: Name
    """Cut it ends at."""
    branches: tuple[Branch, ...]
    merge: Merge = "concat"
    """`concat` concatenates outputs by channel; `project` keeps the width by 1x1 convolutions."""

    @property
    def processors(self) -> tuple[str, ...]:
        """Return the processor of each branch."""
        return tuple(branch.processor for branch in self.branches)

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
    """The network it stretches, as on the command line: `torchvision:resnet18`, `net.py:make`."""
    input_shape: tuple[int, ...]
    """NCHW, with the batch size of the latency."""
    segments: tuple[Segment, ...]
    soc: str | None = None
    """Chip of the search that found it; None for a plan written by hand."""
    input_dtype: str = ""
    """Element type of the input; empty for what the network declares, else float32."""

    @property
    def processors(self) -> tuple[str, ...]:
        """Return the processors in order of first use."""
        return tuple(dict.fromkeys(chain.from_iterable(s.processors for s in self.segments)))

    def __str__(self) -> str:
        return "\n".join([f"plan {self.model}", *(f"  {segment}" for segment in self.segments)])

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        html: str = import_module("nnstretch.report.notebook").plan_html(self)
        return html
