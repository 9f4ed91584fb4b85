"""Costs of the layers that segments pass: of all widths, and of the original's on one processor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.space.search_space import SearchSpace


@dataclass(frozen=True)
class PassedUnits:
    """Units that branches with one end pass behind their first: `[unit, width]`."""

    us: dict[str, Array] | None
    """By processor; None where layouts of maps decide or some unit cannot be built."""
    macs: Array
    params: Array
    differs: Array
    """One where the widths before and behind a unit differ, else zero."""


@dataclass(frozen=True)
class OriginalTails:
    """Original layers behind the first units of segments with one end: `[start]`."""

    us: Mapping[str, Array]
    """By what processors are priced under."""
    macs: Array
    params: Array


def original_tails(units: PassedUnits) -> OriginalTails | None:
    """Return what original layers cost behind first units; None where units have no sums."""
    if units.us is None:
        return None
    us = {processor: sums_behind(table[:, -1]) for processor, table in units.us.items()}
    return OriginalTails(us, sums_behind(units.macs[:, -1]), sums_behind(units.params[:, -1]))


def sums_behind(costs: Array, axis: int = 0) -> Array:
    """Return sums of costs from each on along an axis, and zero behind the last."""
    sums = np.flip(np.cumsum(np.flip(costs, axis), axis), axis)
    shape = list(costs.shape)
    shape[axis] = 1
    return np.concatenate([sums, np.zeros(shape)], axis)


def originals_from(space: SearchSpace, i: int) -> list[tuple[dict[str, float], int]]:
    """Return the original layers from one cut to each later one."""
    model = space.layout_model
    us, macs = dict.fromkeys(space.processors, 0.0), 0
    blocked = dict.fromkeys(space.processors, False)
    originals = list[tuple[dict[str, float], int]]()
    for k in range(i, space.last):
        ends_us = dict[str, float]()
        for p in us:
            leaving_us, unit_macs = space.unit(k).original(model.entered(blocked[p], leave=True))
            plain, _ = space.unit(k).original(model.entered(blocked[p], leave=False))
            ends_us[p] = us[p] + plain[p]
            us[p] += leaving_us[p]
            blocked[p] = plain[p] > leaving_us[p]
        macs += unit_macs
        originals.append((ends_us, macs))
    return originals
