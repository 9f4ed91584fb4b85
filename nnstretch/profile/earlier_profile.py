"""What earlier runs left in a profile's folder, kept where a run has no time to do it again."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from nnstretch.errors import NnstretchError
from nnstretch.predict.learned import Learned
from nnstretch.predict.load_soc import load_soc
from nnstretch.profile.machine import PinnedProcessor
from nnstretch.profile.system_costs import (
    Pair,
    Surroundings,
    contention_of,
    core_pairs,
    names_of,
)
from nnstretch.profile.validation import HeldOutNetwork
from nnstretch.soc import Soc


def earlier_soc(folder: Path, measured_on: str) -> Soc | None:
    """Return the chip that a folder holds, None where there is none that can be read, or it was
    measured on something else than its provenance should begin with.
    """
    if not (folder / "soc.json").is_file():
        return None
    try:
        soc = load_soc(folder)
    except NnstretchError:
        return None  # it is written anew
    return soc if soc.provenance.startswith(measured_on) else None


def as_placed(
    earlier: Soc, before: Sequence[PinnedProcessor], places: Sequence[PinnedProcessor]
) -> Soc:
    """Return an earlier chip by today's names: a name may stand for another core than it did.

    A core that is new has rules and predictor of one that is equal to it; contention is of those
    very cores. Where nobody recorded the cores, names mean what they meant.
    """
    known = [place for place in before if place.name in earlier.processor_names]
    if not known:
        return earlier
    equal = {place.cluster: place.name for place in reversed(known)}
    same = {place.where: place.name for place in known}
    names = {
        place.name: same.get(place.where, equal[place.cluster])
        for place in places
        if place.cluster in equal
    }
    renamed = {same[place.where]: place.name for place in places if place.where in same}
    return replace(
        earlier,
        processors=tuple(replace(earlier.processor(old), name=now) for now, old in names.items()),
        predictors={now: earlier.predictors[old] for now, old in names.items()},
        fusion={now: earlier.rules(old) for now, old in names.items()},
        contention={
            frozenset(renamed[name] for name in pair): factor
            for pair, factor in earlier.contention.items()
            if pair <= renamed.keys()
        },
    )


def kept_contention(
    earlier: Soc | None, costs: Surroundings, names: Collection[str]
) -> dict[frozenset[str], float]:
    """Return the contention of processors: as it was before, where it was not measured anew."""
    before = earlier.contention.items() if earlier is not None else ()
    kept = {pair: factor for pair, factor in before if pair <= frozenset(names)}
    return kept | dict(costs.contention)


def kept_doubts(
    earlier: Soc | None, costs: Surroundings, places: Sequence[PinnedProcessor]
) -> list[str]:
    """Return what others kept from being measured, before or now, and is not measured by now."""
    pairs = [
        pair
        for pair in core_pairs(places)
        if pair in costs.disturbed
        or (names_of(pair) not in costs.contention and was_disturbed(earlier, pair))
    ]
    return [f"{contention_of(pairs)} could not be measured"] if pairs else []


def was_disturbed(earlier: Soc | None, pair: Pair) -> bool:
    """Return whether an earlier chip is noisy because others kept a pair from being measured.

    It names some pairs and counts more: those are taken to be what it has no contention of.
    """
    if earlier is None:
        return False
    first, second = (re.escape(place.name) for place in pair)
    if re.search(rf"(?<![\w-]){first} and {second}(?![\w-])", earlier.noisy):
        return True
    counted = re.search(r"contention of .* more pairs? could not be measured", earlier.noisy)
    return counted is not None and names_of(pair) not in earlier.contention


def kept_predictor(earlier: Soc | None, processor: str, fitted: Learned) -> Learned:
    """Return the earlier predictor of the same kernels where it has trees that there was no time to
    grow again, else the fitted one.
    """
    before = earlier.predictors.get(processor) if earlier is not None else None
    if not isinstance(before, Learned):
        return fitted
    for name, family in fitted.families.items():
        grown = before.families.get(name, family).forest is not None
        if grown and family.forest is None:
            return before
    return fitted


def kept_networks(
    earlier: Iterable[HeldOutNetwork],
    rows: Iterable[HeldOutNetwork],
    places: Iterable[PinnedProcessor],
) -> list[HeldOutNetwork]:
    """Return the networks held out, each as it was measured last on each of these processors."""
    where = {place.name: place.where for place in places}
    latest = {(row.network, row.processor): row for row in (*earlier, *rows)}
    return [
        row
        for row in latest.values()
        if row.processor in where and row.where in ("", where[row.processor])
    ]
