"""The chip: processors, what copies between them cost, and the predictor of each.

Costs are microseconds; sizes are bytes of the deployed network's element type (`dtype`), so a chip
measured with int8 networks moves one byte per element.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import combinations
from typing import cast

from nnstretch.errors import BadInput, UnknownName
from nnstretch.graph import ELEMENT_BYTES
from nnstretch.kernel import MOBILE_FUSION, FusionRules
from nnstretch.predictor import NeighbourPredictor, Predictor

BESIDE = " beside "
"""In a price key, between a processor and those beside it; no name of a processor has a space."""


@dataclass(frozen=True, slots=True)
class Link:
    """Cost of copying a tensor in one direction."""

    fixed_us: float = 0.0
    us_per_kib: float = 0.0

    def cost_us(self, size_bytes: float) -> float:
        """Return the time to copy `size_bytes`."""
        return self.fixed_us + self.us_per_kib * size_bytes / 1024

    def __add__(self, behind: Link) -> Link:
        return Link(self.fixed_us + behind.fixed_us, self.us_per_kib + behind.us_per_kib)


@dataclass(frozen=True, slots=True)
class Processor:
    """One processor, fed through a queue of its own."""

    name: str
    kind: str
    """cpu, gpu, dsp or npu."""
    queue_depth: int
    """Tasks that it accepts before the host must wait."""
    copy_in: Link = Link()
    """From host memory to this processor, paid once per branch."""
    copy_out: Link = Link()
    sync_us: float = 0.0
    """Synchronization that it adds to a meeting point, beyond compute and copies."""
    asynchronous: bool = True
    """True for a queue like OpenCL's: enqueueing returns at once, an event tells the end.

    False for a blocking call like the DSP's, which keeps a helper thread, or the host's where
    `blocks_host`.
    """
    memory_bytes: int | None = None
    """Weights that it can hold; None where no limit is known."""
    power_w: float | None = None
    """Mean power while it computes, above the idle chip's; None where unmeasured."""
    enqueue_us: float = 0.0
    """Time of the host thread to enqueue a task and flush, or to wake a helper thread.

    Of an asynchronous processor it is part of `sync_us`: a meeting point then pays the difference.
    """
    blocks_host: bool = False
    """True for a blocking call on the host thread, which does nothing else until it returns."""
    copies_overlap_compute: bool | None = None
    """Whether copies of other items overlap its compute; None for what its kind suggests."""

    @property
    def overlaps_copies(self) -> bool:
        """Return whether copies to and from it run beside its compute."""
        if self.copies_overlap_compute is None:
            return self.kind != "cpu"
        return self.copies_overlap_compute


@dataclass(frozen=True, slots=True)
class Neighbour:
    """What a processor loses while another one works on a branch of the same fork."""

    processor: str
    beside: str
    busy_factor: float = 1.0
    """On the time in which threads multiply and gather, of kernels that multiply matrices.

    What they wait for memory hides it: a kernel takes the longer of its time alone and this.
    """
    copy_in: Link = Link()
    """The host's work for the other, before which a branch here cannot start."""


@dataclass(frozen=True, slots=True)
class BranchedError:
    """How far off branched networks were that were not used to fit the chip."""

    relative_error: float
    """Root-mean-square error, a share of the latency."""
    interval_factor: float
    """90% of networks take between the predicted latency over this and times this."""


@dataclass(frozen=True, slots=True)
class Soc:
    """A chip: its processors in order of preference, and a predictor for each.

    Raises BadInput where two processors have one name.
    """

    name: str
    processors: tuple[Processor, ...]
    dtype: str
    """Element type of the deployed networks whose latency was measured."""
    predictors: Mapping[str, Predictor]
    merge: Link = Link()
    """Concatenation of branch outputs at a meeting point, on the host."""
    contention: Mapping[frozenset[str], float] = field(default_factory=dict)
    """Factor on compute while exactly these processors run at once; see `contention_factor`."""
    calibrated: bool = True
    """False for a chip derived from specifications, of which no latency was published."""
    provenance: str = ""
    """What was measured, by whom, and the held-out error, in one sentence."""
    fusion: Mapping[str, FusionRules] = field(default_factory=dict)
    """Fusion rules by processor, where they are not `MOBILE_FUSION`."""
    neighbours: tuple[Neighbour, ...] = ()
    """Slowdown of a processor beside another, where it depends on the kernels of both."""
    branched_error: BranchedError | None = None
    """None where no branched network was measured: the error of the slowest branch counts."""
    folder: str = field(default="", repr=False, compare=False)
    """Folder that it was loaded from; empty for one that was made in Python."""

    def __post_init__(self) -> None:
        require_distinct(self.processors, f"SoC {self.name}")

    @property
    def processor_names(self) -> tuple[str, ...]:
        """Return the names of the processors in order."""
        return tuple(processor.name for processor in self.processors)

    def processor(self, name: str) -> Processor:
        """Return a processor by name. Raises UnknownName for a name that the chip lacks."""
        for processor in self.processors:
            if processor.name == name:
                return processor
        names = ", ".join(self.processor_names)
        raise UnknownName(f"unknown processor {name!r}, SoC {self.name}, it has {names}")

    def rules(self, processor: str) -> FusionRules:
        """Return the fusion rules of a processor's backend; of a price key, its processor's."""
        return self.fusion.get(processor_of(processor), MOBILE_FUSION)

    def price_key(self, processor: str, team: Iterable[str]) -> str:
        """Return what a processor's kernels are priced under while a team computes.

        It is the processor's name where nobody of the team slows single kernels.
        """
        slowing = sorted(n.beside for n in self.slowing(processor) if n.beside in team)
        return processor + BESIDE + "+".join(slowing) if slowing else processor

    def price_keys(self, processors: Iterable[str]) -> tuple[str, ...]:
        """Return every price key that teams of these processors can have, alone first."""
        names = tuple(processors)
        keys = dict.fromkeys(names)
        for size in range(2, len(names) + 1 if self.neighbours else 2):
            for team in combinations(names, size):
                keys |= dict.fromkeys(self.price_key(name, team) for name in team)
        return tuple(keys)

    def slowing(self, processor: str) -> list[Neighbour]:
        """Return the neighbours that slow single kernels of a processor."""
        return [n for n in self.neighbours if n.processor == processor and n.busy_factor > 1]

    def predictor(self, price_key: str) -> Predictor:
        """Return the predictor of a price key; alone where it knows nothing of neighbours.

        Raises UnknownName for a processor without one.
        """
        name, _, beside = price_key.partition(BESIDE)
        if name not in self.predictors:
            known = ", ".join(self.predictors) or "none"
            raise UnknownName(f"no predictor of {name!r}, SoC {self.name}, it has {known}")
        predictor = self.predictors[name]
        if not beside or not hasattr(predictor, "beside"):
            return predictor
        names = beside.split("+")
        factor = max(n.busy_factor for n in self.slowing(name) if n.beside in names)
        return cast(NeighbourPredictor, predictor).beside(factor)

    def processor_among(self, name: str, team: Iterable[str]) -> Processor:
        """Return a processor with the copies that it pays in a fork with a team.

        Raises UnknownName for a name that the chip lacks.
        """
        processor = self.processor(name)
        for neighbour in self.neighbours:
            if neighbour.processor == name and neighbour.beside in team:
                processor = replace(processor, copy_in=processor.copy_in + neighbour.copy_in)
        return processor

    @property
    def noisy(self) -> str:
        """Return why predictors were fitted to noisy measurements, empty where none was."""
        lines = [getattr(predictor, "noisy", "") for predictor in self.predictors.values()]
        return "; ".join(line for line in dict.fromkeys(lines) if line)

    @property
    def element_bytes(self) -> int:
        """Return the bytes of one element as deployed."""
        return ELEMENT_BYTES[self.dtype]

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        html: str = import_module("nnstretch.report.notebook").soc_html(self)
        return html

    def contention_factor(self, names: frozenset[str]) -> float:
        """Return the factor on compute while these run at once.

        It is that of the set, else the largest of the sets of two and more within it, else 1.
        """
        if names in self.contention:
            return self.contention[names]
        within = (members for members in self.contention if len(members) > 1 and members <= names)
        return max((self.contention[members] for members in within), default=1.0)


def require_distinct(processors: Iterable[Processor], where: str) -> None:
    """Check that every processor has a name of its own. Raises BadInput."""
    counts = Counter(processor.name for processor in processors)
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise BadInput(
            f"{counts[repeated[0]]} processors are called {repeated[0]!r}, {where}, name each"
            " processor once"
        )


def host_of(processors: Iterable[Processor]) -> str | None:
    """Return the name of the first CPU, which merges and calls the others; None without one."""
    return next((processor.name for processor in processors if processor.kind == "cpu"), None)


def processor_of(price_key: str) -> str:
    """Return the processor of a price key."""
    return price_key.partition(BESIDE)[0]
