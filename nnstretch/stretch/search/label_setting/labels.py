"""Labels of a label-setting algorithm, and paths of whole plans."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array, take_rows
from nnstretch.stretch.search.options.segment_option import SegmentOption


@dataclass(frozen=True)
class LabelSet:
    """Partial plans from the input to one cut, a row each."""

    bound_us: Array
    """What plans that begin like this take at least."""
    width: Array
    """Merged width."""
    latency_us: Array
    macs: Array
    params: Array
    meetings: Array
    """Meeting points of branches so far."""
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
        none = np.zeros(1, dtype=np.int64)
        sums = zero, zero, zero, none, params_held
        return cls(zero - np.inf, np.array([width]), *sums, nothing, nothing, options)

    def __len__(self) -> int:
        return len(self.width)

    def take(self, rows: Array | slice) -> LabelSet:
        """Return the chosen rows."""
        return take_rows(self, rows)


@dataclass(frozen=True)
class LabelGroup:
    """Labels of one cut and merged width, which are extended together."""

    width: int
    labels: LabelSet
    numbers: Array
    """Numbers of the labels among all that were expanded."""
    reduced_us: Array
    """Reduced costs with what the limits add: `[multipliers, label]`."""

    @cached_property
    def least_us(self) -> Array:
        """Return the least reduced cost of any label, at each of the search's multipliers, us."""
        return np.asarray(self.reduced_us.min(axis=1))


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


class LabelTree:
    """Labels that were expanded, numbered in the order in which they were."""

    def __init__(self) -> None:
        self._parts: list[LabelSet] = []
        self._firsts = [0]

    def append(self, labels: LabelSet) -> int:
        """Append labels; return the number of the first."""
        self._parts.append(labels)
        self._firsts.append(self._firsts[-1] + len(labels))
        return self._firsts[-2]

    def trace_path(
        self, labels: LabelSet, row: int, options: Sequence[SegmentOption]
    ) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return the steps that led to a label, first to last, as in `PlanPath`."""
        steps: list[tuple[int, tuple[int, ...]]] = []
        while labels.option[row] >= 0:
            number = int(labels.option[row])
            branches = len(options[number].processors)
            steps.append((number, tuple(labels.options[row, :branches].tolist())))
            parent = int(labels.parent[row])
            part = bisect_right(self._firsts, parent) - 1
            labels, row = self._parts[part], parent - self._firsts[part]
        return tuple(reversed(steps))


def concatenate_labels(parts: Sequence[LabelSet]) -> LabelSet:
    """Return several label sets as one."""
    if len(parts) == 1:
        return parts[0]
    columns = [np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(LabelSet)]
    return LabelSet(*columns)


def branch_columns(options: Sequence[Array], rows: Array, columns: int) -> Array:
    """Return chosen rows of every branch's options, padded with zeros: `[row, column]`."""
    padded = np.zeros((len(rows), columns), dtype=np.int32)
    for b, option in enumerate(options):
        padded[:, b] = option[rows]
    return padded
