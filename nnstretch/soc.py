"""The chip: processors, what crossing between them costs, and who predicts each one.

All costs are microseconds and bytes as the deployed network sees them (`dtype`), so a chip
that was measured with int8 networks moves one byte per element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

from nnstretch.errors import UnknownName
from nnstretch.graph import ELEMENT_BYTES
from nnstretch.kernel import MOBILE_FUSION, FusionRules
from nnstretch.predictor import Predictor


@dataclass(frozen=True, slots=True)
class Link:
    """What it costs to hand a tensor over in one direction."""

    fixed_us: float = 0.0
    us_per_kib: float = 0.0

    def cost_us(self, size_bytes: float) -> float:
        """Return the time to move so many bytes."""
        return self.fixed_us + self.us_per_kib * size_bytes / 1024


@dataclass(frozen=True, slots=True)
class Processor:
    """One processor, fed through a queue of its own."""

    name: str
    kind: str
    """cpu, gpu, dsp or npu."""
    queue_depth: int
    """Tasks it accepts before its producer has to wait."""
    copy_in: Link = Link()
    """Host memory to this processor, paid once per branch."""
    copy_out: Link = Link()
    sync_us: float = 0.0
    """What a meeting point waits for this processor beyond its compute and copies."""
    asynchronous: bool = True
    """True for a queue like OpenCL's.

    Enqueueing returns at once, and who needs the result waits for an event. False for a call like
    the DSP's, in which a thread stays until it returns: a helper thread, or the host's where
    `blocks_host`.
    """
    memory_bytes: int | None = None
    """Weights and activations it can hold; None where no limit is known."""
    power_w: float | None = None
    """Mean power while it computes, above the idle chip's; None where nobody measured it."""
    enqueue_us: float = 0.0
    """What handing it a task holds the host thread, before the work starts.

    Enqueue and flush, or the push to a helper thread. Where asynchronous, `sync_us` contains it:
    the meeting point itself costs only the rest, the wake-up.
    """
    blocks_host: bool = False
    """True for a call without a helper thread: the host does nothing else until it returns."""
    copies_overlap_compute: bool | None = None
    """Whether tensors of other items are copied to and from it while it computes, as a stage of a
    pipeline: by an engine or a thread of the host. False where its own cores copy; None for what
    its kind suggests.
    """

    @property
    def overlaps_copies(self) -> bool:
        """Return whether copies to and from it run beside its compute."""
        return (
            self.kind != "cpu"
            if self.copies_overlap_compute is None
            else self.copies_overlap_compute
        )


@dataclass(frozen=True, slots=True)
class Soc:
    """A chip: its processors in order of preference, and a predictor for each."""

    name: str
    processors: tuple[Processor, ...]
    dtype: str
    """Element type of the deployed network whose latency was measured."""
    predictors: Mapping[str, Predictor]
    merge: Link = Link()
    """Concatenating branch outputs at a meeting point, on the host."""
    contention: Mapping[frozenset[str], float] = field(default_factory=dict)
    """Factor on compute while exactly these processors run at once; 1 where absent."""
    calibrated: bool = True
    """False where no latency of this chip was ever published: derived from specifications."""
    provenance: str = ""
    """What was measured, by whom, and the held-out error, in one sentence."""
    fusion: Mapping[str, FusionRules] = field(default_factory=dict)
    """What each processor's backend fuses, where it is not `MOBILE`."""

    def processor(self, name: str) -> Processor:
        """Return the processor of a name. Raises UnknownName."""
        for processor in self.processors:
            if processor.name == name:
                return processor
        names = ", ".join(p.name for p in self.processors)
        raise UnknownName(f"unknown processor {name!r}, SoC {self.name}, it has {names}")

    def rules(self, processor: str) -> FusionRules:
        """Return what the backend of a processor fuses."""
        return self.fusion.get(processor, MOBILE_FUSION)

    @property
    def element_bytes(self) -> int:
        """Return the bytes of one element as deployed."""
        return ELEMENT_BYTES[self.dtype]

    def contention_factor(self, names: frozenset[str]) -> float:
        """Return contention factor when these run at once.

        The published set, else the worst pair in it.
        """
        if names in self.contention:
            return self.contention[names]
        pairs = (frozenset(pair) for pair in combinations(sorted(names), 2))
        return max((self.contention.get(pair, 1.0) for pair in pairs), default=1.0)
