"""What is compared with what, and by which numbers: the nouns and pure rules of the comparison.

Predicted and measured latencies never share a field.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nnstretch.errors import BadInput

LETTERS = {"C": "cpu", "G": "gpu", "D": "dsp"}
COMBINATIONS = {
    "C+G": ("cpu", "gpu"),
    "C+D": ("cpu", "dsp"),
    "G+D": ("gpu", "dsp"),
    "C+G+D": ("cpu", "gpu", "dsp"),
}
SCALE = ("R-50", "C+D")
"""Searched once more at all MACs of the original, for comparison with a rough estimate of the same.
"""
ALL_MACS = "all MACs"
"""What bounds that search, in place of a configuration."""


@dataclass(frozen=True, slots=True)
class Original:
    """An unbranched network, alone on each processor."""

    network: str
    model: str
    macs: int
    params: int
    predicted_us: Mapping[str, float]
    error_us: Mapping[str, float]
    measured_us: Mapping[str, float]
    """Published, where it is; by processor."""


@dataclass(frozen=True, slots=True)
class Published:
    """A published plan, priced as it is."""

    config: str
    network: str
    combination: str
    macs: int
    params: int
    predicted_us: float
    error_us: float
    measured_us: float | None
    breaks: tuple[str, ...] = ()
    """Constraints of the default limits that it does not keep."""
    outside: tuple[str, ...] = ()
    """What it has and the searched space has not."""
    processors: tuple[str, ...] = ()
    """On which it runs; some run stem and head on a processor that their name leaves out."""
    meetings: int = 0
    """Segments in which branches run side by side."""
    as_published: bool = True
    """False where the file contradicts itself and the merged widths are sums."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What a found plan must have at least."""

    source: str
    """Configuration that sets it."""
    macs: int
    params: int
    borrowed: bool = False
    """Not of a published plan of this combination."""


@dataclass(frozen=True, slots=True)
class Task:
    """One search."""

    network: str
    combination: str
    bound: Bound


@dataclass(frozen=True, slots=True)
class Searched:
    """How one search ended; `refusal` says why where there is no plan."""

    network: str
    combination: str
    bound: str
    limits: Mapping[str, float]
    code: str
    """Fingerprint of the sources and data behind it."""
    latency_us: float = math.nan
    error_us: float = math.nan
    macs: int = 0
    params: int = 0
    iso_mac_us: float = math.nan
    iso_mac_processor: str = ""
    optimal: bool = False
    lower_bound_us: float = math.nan
    search_s: float = math.nan
    peak_bytes: int = 0
    base_bytes: int = 0
    """Of the peak, held before the search began."""
    plan: str = ""
    processors: tuple[str, ...] = ()
    meetings: int = 0
    """Segments in which branches run side by side."""
    refusal: str = ""
    stopped: bool = False
    """By a limit of time or memory: another run tries again."""

    @property
    def found(self) -> bool:
        return not self.refusal


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; ratios above 1 are in favour of the found plan."""

    original: Original
    task: Task
    published: Published | None
    searched: Searched | None

    @property
    def processors(self) -> tuple[str, ...]:
        return COMBINATIONS[self.task.combination]

    @property
    def plan(self) -> Searched | None:
        return self.searched if self.searched is not None and self.searched.found else None

    @property
    def fastest(self) -> str:
        """Of the processors that are used."""
        return min(self.processors, key=lambda name: self.original.predicted_us[name])

    @property
    def fastest_us(self) -> float:
        return self.original.predicted_us[self.fastest]

    @property
    def rates(self) -> float:
        return sum_of_rates(self.original, self.task.combination)

    def limit(self, macs: int) -> float:
        """Speed-up of `macs` MACs at the sum of rates."""
        return self.rates * self.original.macs / macs

    def share(self, latency_us: float, macs: int) -> float:
        """Delivered MACs a second over the sum of the rates at which the original runs alone."""
        return self.fastest_us / latency_us / self.limit(macs)

    @property
    def met(self) -> bool | None:
        """Whether the found plan has the bound's MACs and parameters and is predicted to be faster
        than the published one.
        """
        if self.published is None or self.plan is None:
            return None
        enough = (
            self.plan.macs >= self.task.bound.macs and self.plan.params >= self.task.bound.params
        )
        return enough and self.plan.latency_us < self.published.predicted_us


def sum_of_rates(original: Original, combination: str) -> float:
    """Return the processors' rates over that of the fastest: the speed-up of a perfect split."""
    alone_us = [original.predicted_us[name] for name in COMBINATIONS[combination]]
    return sum(min(alone_us) / us for us in alone_us)


def nearest(plans: Sequence[Published], network: str, combination: str) -> Published | None:
    """Return the plan that bounds a combination without one: as many processors, then most in
    common, then most MACs, then first.
    """
    wanted = set(COMBINATIONS[combination])

    def near(plan: Published) -> tuple[bool, int, int]:
        has = set(COMBINATIONS[plan.combination])
        return len(has) == len(wanted), len(has & wanted), plan.macs

    return max((p for p in plans if p.network == network), key=near, default=None)


def tasks_of(
    plans: Sequence[Published], originals: Sequence[Original], combinations: Sequence[str]
) -> list[Task]:
    """One search for every published plan of a combination, or one at the bound of the nearest."""
    tasks: list[Task] = []
    for original in originals:
        for combination in combinations:
            own = [
                p for p in plans if (p.network, p.combination) == (original.network, combination)
            ]
            near = nearest(plans, original.network, combination)
            if near is None:
                raise BadInput(
                    f"no published plan, network {original.network}, nothing bounds a search for"
                    f" {combination}"
                )
            bounds = [Bound(p.config, p.macs, p.params) for p in own] or [
                Bound(near.config, near.macs, near.params, borrowed=True)
            ]
            tasks += [Task(original.network, combination, bound) for bound in bounds]
            if (original.network, combination) == SCALE:
                tasks.append(Task(original.network, combination, at_all_macs(original)))
    return tasks


def at_all_macs(original: Original) -> Bound:
    return Bound(ALL_MACS, original.macs, 0, borrowed=True)


def combination_of(config: str) -> str | None:
    """`R-34-CDG` -> `C+G+D`; None where one processor runs it all.

    Raises BadInput for an unknown letter.
    """
    letters = config.rpartition("-")[2]
    if not letters or set(letters) - LETTERS.keys():
        raise BadInput(
            f"unknown processors {letters!r}, configuration {config}, known are"
            f" {', '.join(LETTERS)}"
        )
    used = {LETTERS[letter] for letter in letters}
    return next(
        (name for name, processors in COMBINATIONS.items() if set(processors) == used), None
    )


def geometric_mean(values: Iterable[float]) -> float | None:
    """None of no values."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def gap(searched: Searched) -> float:
    """How much faster, as a share of the plan's latency, an unknown plan could be at most."""
    return 0.0 if searched.optimal else 1 - searched.lower_bound_us / searched.latency_us


def chosen(text: str | None, known: Sequence[str], option: str) -> tuple[str, ...]:
    """`R-34,R-50` in the order of `known`; all where nothing is named. Raises BadInput."""
    if text is None:
        return tuple(known)
    names = [name.strip() for name in text.split(",") if name.strip()]
    if wrong := [name for name in names if name not in known] or ([] if names else [text]):
        raise BadInput(f"{option} names {wrong[0]!r}, command line, known are {', '.join(known)}")
    return tuple(name for name in known if name in names)


def limits_of(text: str | None, defaults: Mapping[str, float]) -> dict[str, float]:
    """`alpha=0.7,beta=1` over the defaults. Raises BadInput."""
    values = dict(defaults)
    for part in (text or "").split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not part.strip():
            continue
        if name not in defaults or not equals:
            raise BadInput(
                f"--limits has {part.strip()!r}, command line, write NAME=NUMBER with"
                f" {', '.join(defaults)}"
            )
        try:
            values[name] = float(value)
        except ValueError:
            raise BadInput(
                f"--limits {name} is {value!r}, command line, it must be a number"
            ) from None
    return values


def at_all(row: Row) -> bool:
    """Return whether a row is the one for scale, which is no part of the means."""
    return row.published is None and row.task.bound.source == ALL_MACS
