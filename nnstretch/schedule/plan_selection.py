"""Which of several plans to use now.

The one that is fastest at the speed that each processor has left.

A processor's slowdown is what its tasks take over what they are predicted to take. One that the
plan in use leaves idle is tried with a short task of another plan now and then, which costs no
latency: it runs beside the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from nnstretch.errors import BadInput
from nnstretch.task import Task, TaskTimes
from nnstretch.trace import Span

GONE = float("inf")
"""Slowdown of a processor that has failed."""


@dataclass(frozen=True, slots=True)
class PlanVariant:
    """One plan of a network, as tasks of one request."""

    name: str
    tasks: tuple[Task, ...]
    durations_us: TaskTimes
    """On a quiet chip."""
    handovers_us: TaskTimes = field(default_factory=dict)
    """What the host needs to hand a task over, before it starts."""

    def latency_us(self, slowdown: Mapping[str, float]) -> float:
        """Predict with every processor as slow as it is now and a lost one's work where it would
        go, us; infinite where it can go nowhere.
        """
        ends_us: dict[str, float] = {}
        free_us: dict[str, float] = {}
        for task in self.tasks:
            processor = self._replacement(task, slowdown)
            us = self.durations_us[task.work, processor]
            start_us = max(
                free_us.get(processor, 0.0), *(ends_us[need] for need in task.needs), 0.0
            )
            start_us += self.handovers_us.get((task.work, processor), 0.0)
            ends_us[task.name] = free_us[processor] = start_us + (
                us and us * slowdown.get(processor, 1.0)
            )
        return max(ends_us.values(), default=0.0)

    def _replacement(self, task: Task, slowdown: Mapping[str, float]) -> str:
        """Return a task's own processor, or the fastest of the others where that is lost.

        Its own again where none is predicted.
        """
        placed = task.processor or ""
        if slowdown.get(placed) != GONE:
            return placed
        known = [
            (us, p)
            for (sub, p), us in self.durations_us.items()
            if sub == task.work and slowdown.get(p) != GONE
        ]
        return min(known, key=lambda name: name[0])[1] if known else placed

    def work_us(self, task: Task) -> float:
        """Return what a task is predicted to take."""
        return self.durations_us[task.work, task.processor or ""]

    @property
    def processors(self) -> frozenset[str]:
        """Return the processors of a variant."""
        return frozenset(task.processor or "" for task in self.tasks)


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """How quickly to believe and to move."""

    memory: float = 0.5
    """Weight of the newest measurement of a processor.

    Of one that was idle for some requests, as though it had measured so in each.
    """
    gain: float = 0.05
    """A plan must promise to be so much faster before it is moved to (hysteresis)."""
    patience: int = 2
    """Requests for which it must have promised so."""
    probe_every: int = 4
    """Requests between two tries of an idle processor."""

    def __post_init__(self) -> None:
        if not (
            0 < self.memory <= 1 and self.gain >= 0 and self.patience >= 1 and self.probe_every >= 1
        ):
            raise BadInput(
                f"{self}, adaptive plans, needed are 0 < memory <= 1, gain >= 0, patience and"
                " probe_every of at least 1"
            )


@dataclass(slots=True)
class PlanSelector:
    """Hears of every span, and says before every request which variant to use."""

    variants: Sequence[PlanVariant]
    selection_settings: SelectionSettings = SelectionSettings()
    slowdown: dict[str, float] = field(default_factory=dict)
    """By processor; 1 is as fast as predicted."""
    _current: int = 0
    _promising: tuple[int, int] = (0, 0)
    """Variant, and for how many requests it has been better."""
    _requests: int = 0
    _heard: dict[str, int] = field(default_factory=dict)
    """By processor, the request in which it last was heard."""

    def __post_init__(self) -> None:
        if not self.variants:
            raise BadInput("no plans, adaptive, needed is at least one")
        self._current = self._best()

    @property
    def current(self) -> PlanVariant:
        """Return the variant in use."""
        return self.variants[self._current]

    def observe(self, span: Span) -> None:
        """Learn from a task that has ended; times too short to tell anything are left out."""
        expected_us = next(
            (
                v.durations_us[span.task.work, span.processor]
                for v in self.variants
                if (span.task.work, span.processor) in v.durations_us
            ),
            0.0,
        )
        if expected_us > 0 and self.slowdown.get(span.processor) != GONE:
            ratio, known = span.duration_us / expected_us, self.slowdown.get(span.processor, 1.0)
            since = max(1, self._requests - self._heard.get(span.processor, self._requests))
            self.slowdown[span.processor] = known + (
                1 - (1 - self.selection_settings.memory) ** since
            ) * (ratio - known)
            self._heard[span.processor] = self._requests

    def mark_failed(self, processor: str) -> None:
        """Make a failed processor infinitely slow."""
        self.slowdown[processor] = GONE

    def set_failed(self, processors: Collection[str]) -> None:
        """Set which processors are gone: these, and no others.

        One that has come back is believed to be as fast as predicted.
        """
        for processor in [
            p for p, factor in self.slowdown.items() if factor == GONE and p not in processors
        ]:
            del self.slowdown[processor]
        for processor in processors:
            self.mark_failed(processor)

    def choose(self) -> PlanVariant:
        """Choose the variant for the next request.

        Moves only to what has been better by `gain` for `patience` requests.
        """
        self._requests += 1
        best, now_us = self._best(), self.current.latency_us(self.slowdown)
        better = best != self._current and self.variants[best].latency_us(
            self.slowdown
        ) < now_us * (1 - self.selection_settings.gain)
        count = self._promising[1] + 1 if better and self._promising[0] == best else int(better)
        self._promising = (best, count)
        lost = any(self.slowdown.get(processor) == GONE for processor in self.current.processors)
        if better and (lost or count >= self.selection_settings.patience):
            self._current, self._promising = best, (best, 0)
        return self.current

    def probes(self) -> tuple[Task, ...]:
        """Return short tasks for processors that the current variant leaves idle.

        None but every `probe_every` requests.
        """
        if self._requests % self.selection_settings.probe_every:
            return ()
        idle = {
            p for variant in self.variants for p in variant.processors
        } - self.current.processors
        return tuple(
            task
            for p in sorted(idle)
            if self.slowdown.get(p) != GONE and (task := self._fastest_variant(p)) is not None
        )

    def _fastest_variant(self, processor: str) -> Task | None:
        known = [
            (v.work_us(task), task)
            for v in self.variants
            for task in v.tasks
            if task.processor == processor and v.work_us(task) > 0
        ]
        return min(known, key=lambda pair: pair[0])[1] if known else None

    def _best(self) -> int:
        return min(
            range(len(self.variants)), key=lambda n: self.variants[n].latency_us(self.slowdown)
        )
