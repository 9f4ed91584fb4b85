"""Labels of a label-setting algorithm, and dominance between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array, take_rows


@dataclass(frozen=True)
class LabelSet:
    """Partial plans from the input to one cut, a row each."""

    width: Array
    """Merged width."""
    latency_us: Array
    macs: Array
    params: Array
    params_held: Array
    """`[label, processor with a memory limit]`."""
    option: Array
    """Number of the segment option that each arrived by; -1 at the input."""
    parent: Array
    """Number of the label that each extends, among all that were expanded."""
    options: Array
    """Options of that segment option's branches: `[label, branch]`."""

    @classmethod
    def at_input(cls, width: int, limited: int, processors: int) -> LabelSet:
        """Return the one label of an empty plan."""
        zero = np.zeros(1)
        nothing = np.array([-1])
        options = np.zeros((1, processors), dtype=np.int32)
        params_held = np.zeros((1, limited))
        return cls(np.array([width]), zero, zero, zero, params_held, nothing, nothing, options)

    def __len__(self) -> int:
        return len(self.width)

    def take(self, rows: Array) -> LabelSet:
        """Return the chosen rows."""
        return take_rows(self, rows)


@dataclass(frozen=True)
class LabelGroup:
    """Labels of one cut and merged width, which are extended together."""

    width: int
    labels: LabelSet
    numbers: Array
    """Numbers of the labels among all that were expanded."""
    least_us: Sequence[float]
    """Least reduced cost of any of them, at each of the search's multipliers."""


@dataclass(frozen=True)
class PlanPath:
    """A whole plan as a path of segment options."""

    latency_us: float
    steps: tuple[tuple[int, tuple[int, ...]], ...]
    """Number of each segment option, and the options of its branches."""

    @property
    def option_numbers(self) -> tuple[int, ...]:
        """Return the segment options: cuts, processors and merges, without depths and widths."""
        return tuple(number for number, _ in self.steps)


def concatenate_labels(parts: Sequence[LabelSet]) -> LabelSet:
    """Return several label sets as one."""
    if len(parts) == 1:
        return parts[0]
    columns = [np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(LabelSet)]
    return LabelSet(*columns)


def outer_sum(first: Array, second: Array) -> Array:
    """Return sums of every row of the first with every row of the second, in that order."""
    sums = first[:, None] + second
    return sums.reshape(sums.shape[0] * sums.shape[1], *sums.shape[2:])


def branch_columns(options: Sequence[Array], rows: Array, columns: int) -> Array:
    """Return chosen rows of every branch's options, padded with zeros: `[row, column]`."""
    padded = np.zeros((len(rows), columns), dtype=np.int32)
    for b, option in enumerate(options):
        padded[:, b] = option[rows]
    return padded


def undominated(group: Array, latency_us: Array, resources: list[Array]) -> Array:
    """Return rows that no other row of their group dominates.

    A row dominates where it is no slower and has at least as much of every resource; of equal rows
    one stays.
    """
    if not len(group):
        return np.zeros(0, dtype=np.int64)
    order = np.lexsort((*(-resource for resource in reversed(resources)), latency_us, group))
    groups = group[order]
    first = np.concatenate([[True], groups[1:] != groups[:-1]])
    if not resources:
        return order[first]
    if len(resources) == 1:
        return order[record_highs(resources[0][order], first)]
    return order[pareto_rows(np.stack([r[order] for r in resources], axis=1), first)]


def record_highs(values: Array, first: Array) -> Array:
    """Return rows whose value exceeds all before it in its group; `first` marks its first row."""
    number = np.cumsum(first) - 1
    ranks = np.unique(values, return_inverse=True)[1].ravel()
    keyed = ranks + number * (int(ranks.max(initial=0)) + 1)
    before = np.concatenate([[-1], np.maximum.accumulate(keyed)[:-1]])
    return np.flatnonzero(first | (keyed > before))


def pareto_rows(values: Array, first: Array) -> Array:
    """Return rows that no earlier row of their group matches in every column."""
    keep: list[int] = []
    starts = np.flatnonzero(first).tolist()
    for low, high in zip(starts, [*starts[1:], len(values)], strict=True):
        rows = values[low:high]
        candidates = np.arange(len(rows))
        while len(candidates):
            head = candidates[0]
            keep.append(low + int(head))
            candidates = candidates[1:]
            candidates = candidates[(rows[candidates] > rows[head]).any(axis=1)]
    return np.array(keep, dtype=np.int64)
