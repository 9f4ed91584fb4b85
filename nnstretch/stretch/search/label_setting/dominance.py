"""Dominance: which rows no other row makes pointless."""

from __future__ import annotations

import ctypes

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.compiled.library import doubles, load_kernels
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.label_setting.labels import LabelSet
from nnstretch.stretch.search.options.option_costs import BranchCombinations

TOGETHER = 32
"""Rows that others are compared with at once."""


def compared_resources(rows: LabelSet | BranchCombinations, limits: NetworkLimits) -> list[Array]:
    """Return the columns that dominance compares beside latency; more is better."""
    columns: list[Array] = []
    if limits.min_macs > 0:
        columns.append(rows.macs)
    if limits.max_macs < np.inf:
        columns.append(-rows.macs)
    if limits.min_params > 0:
        columns.append(rows.params)
    return columns + [-rows.params_held[:, k] for k in range(len(limits.max_held))]


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
    kernels = load_kernels()
    if kernels is not None:
        return compiled_pareto_rows(kernels, values, first)
    keep = [np.zeros(0, dtype=np.int64)]
    starts = np.flatnonzero(first)
    for low, high in zip(starts, np.append(starts[1:], len(values)), strict=True):
        columns = np.ascontiguousarray(values[low:high].T)
        candidates = np.arange(high - low)
        while len(candidates):
            heads, behind = candidates[:TOGETHER], candidates[TOGETHER:]
            heads = heads[~np.triu(matches(columns, heads, heads), 1).any(axis=0)]
            keep.append(low + heads)
            candidates = behind[~matches(columns, heads, behind).any(axis=0)]
    return np.concatenate(keep)


def compiled_pareto_rows(kernels: ctypes.CDLL, values: Array, first: Array) -> Array:
    """Return `pareto_rows` by a compiled loop."""
    columns, starts = doubles(values.T), np.ascontiguousarray(first, dtype=np.uint8)
    kept, is_kept = np.empty(len(values), dtype=np.int64), np.empty(len(values), dtype=np.uint8)
    pointers = [array.ctypes.data for array in (columns, starts, kept, is_kept)]
    kernels.pareto_rows(len(values), len(columns), *pointers)
    return np.flatnonzero(is_kept)


def matches(columns: Array, rows: Array, others: Array) -> Array:
    """Return whether a row has at least as much in every column as another: `[row, other]`."""
    at_least = [column[rows, None] >= column[others] for column in columns]
    return np.asarray(np.logical_and.reduce(at_least))
