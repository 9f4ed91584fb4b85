"""Costs of the original layers between two cuts, on every processor."""

from __future__ import annotations

from nnstretch.stretch.search.space.search_space import SearchSpace


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
