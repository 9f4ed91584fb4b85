"""What earlier runs left in a profile's folder, kept where a run has no time to do it again."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from nnstretch.errors import NnstretchError
from nnstretch.predict.learned import Learned
from nnstretch.predict.load_soc import load_soc
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
    earlier: Iterable[HeldOutNetwork], rows: Iterable[HeldOutNetwork], names: Collection[str]
) -> list[HeldOutNetwork]:
    """Return the networks held out, each as it was measured last on each of these processors."""
    latest = {(row.network, row.processor): row for row in (*earlier, *rows)}
    return [row for row in latest.values() if row.processor in names]
