"""What earlier runs left in a profile's folder, kept where a run has no time to do it again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from nnstretch.errors import NnstretchError
from nnstretch.predict.learned import Learned
from nnstretch.predict.load_soc import load_soc
from nnstretch.profile.machine import PinnedProcessor
from nnstretch.profile.system_costs import Surroundings, contention_doubt
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


def kept_doubts(earlier: Soc | None, costs: Surroundings, names: Iterable[str]) -> list[str]:
    """Return what others kept from being measured, before or now, and is not measured by now."""
    first, *more = names
    noisy = earlier.noisy if earlier is not None else ""
    doubts = list(costs.doubts)
    for name in more:
        doubt = contention_doubt(first, name)
        if (
            doubt in noisy
            and doubt not in doubts
            and frozenset((first, name)) not in costs.contention
        ):
            doubts.append(doubt)
    return doubts


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
