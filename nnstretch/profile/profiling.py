"""The whole of a profile: probe, gather, fit, look around, validate, write. Resumes from the journal in its folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from nnstretch.errors import BadInput
from nnstretch.files import write_text
from nnstretch.fusion import FusionRules
from nnstretch.graph import ELEMENT_BYTES
from nnstretch.predict.learned import Learned
from nnstretch.predict.save import save_soc
from nnstretch.profile import energy, surroundings
from nnstretch.profile.card import Facts, card
from nnstretch.profile.doubts import doubts
from nnstretch.profile.fit import fit
from nnstretch.profile.gather import Gathering
from nnstretch.profile.journal import Journal, opened
from nnstretch.profile.machine import Place, clusters, description, pinned, places
from nnstretch.profile.meter import Meter
from nnstretch.profile.probe import fused_pairs
from nnstretch.profile.sample import Sample, steadied
from nnstretch.profile.samples import load_prior
from nnstretch.profile.validation import Held, summary, validate
from nnstretch.soc import Link, Processor, Soc

LEAST_SAMPLES = 50
Progress = Callable[[str, float, float], None]
"""What is being done, how far, of how much."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody asked for."""

    out: Path
    budget_s: float
    processors: str | None = None
    networks: tuple[str, ...] = ()
    """To validate on; none of them is sampled."""
    seed: int = 0
    most: int = 20_000
    """Kernels on one core; more take longer to fit than they tell."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came out, beside the files."""

    soc: Soc
    samples: dict[int, list[Sample]]
    rows: list[Held]
    refused: dict[str, str]
    seconds: float

    @property
    def kernels(self) -> int:
        return sum(map(len, self.samples.values()))


@dataclass
class Profile:
    """One run of it."""

    wanted: Wanted
    meter: Meter
    progress: Progress

    def run(self) -> Result:
        """Raises BadInput for a folder that cannot be used or a budget too short to fit anything, BrokenFile for a foreign journal."""
        started = perf_counter()
        found = clusters()
        chosen = places(self.wanted.processors, found)
        folder, machine = prepared(self.wanted.out), description()
        head = {"backend": self.meter.name, "version": self.meter.version, "dtype": self.meter.dtype, "machine": machine}
        journal, samples = opened(folder, head)
        earlier_s, joules = journal.spent_s, energy.find()
        before_j, before_s = joules.joules() if joules else 0.0, perf_counter()
        rules, notes = self.gathered(journal, samples, chosen)
        power_w = (joules.joules() - before_j) / (perf_counter() - before_s) if joules else None
        predictors = self.fitted(samples, chosen)
        soc = self.surrounded(predictors, rules, samples, chosen)
        rows, refused = self.validated(predictors[chosen[0].name], rules, chosen[0].core)
        soc = replace(soc, provenance=provenance(self.meter, machine, predictors, rows, sum(map(len, samples.values()))))
        save_soc(soc, folder)
        facts = Facts(soc, self.meter, machine, found, chosen, rules, samples, rows, refused, notes, journal.spent_s, earlier_s, power_w)
        write_text(folder / "CARD.md", card(facts))
        return Result(soc, samples, rows, refused, perf_counter() - started)

    def gathered(self, journal: Journal, samples: dict[int, list[Sample]], chosen: Sequence[Place]) -> tuple[FusionRules, list[str]]:
        """Every cluster gets an equal share of the budget that is left."""
        first = {place.cluster: place.core for place in reversed(chosen)}
        left_s = max(0.0, self.wanted.budget_s - journal.spent_s) / len(first)
        rules, notes = FusionRules(frozenset()), []
        for cluster, core in first.items():
            until_s = journal.spent_s + left_s
            with pinned(core):
                rules = self.probed(journal)
                gathering = Gathering(self.meter, rules, load_prior(), journal, cluster, samples.setdefault(cluster, []), self.wanted.seed)
                gathering.run(until_s, self.wanted.most, self.doubts, partial(self.tell, f"measuring kernels on core {core}"))
            notes.append(quality(core, gathering))
        return rules, notes

    def probed(self, journal: Journal) -> FusionRules:
        started = perf_counter()
        self.progress(f"probing what {self.meter.name} fuses", 0, 1)
        rules = self.meter.rules or fused_pairs(self.meter)
        journal.spend(perf_counter() - started)
        return rules

    def doubts(self, samples: Sequence[Sample]) -> Sequence[float]:
        return doubts(steadied(samples), self.meter.dtype).tolist()

    def tell(self, what: str, done: float, total: float, _: int | str) -> None:
        self.progress(what, done, total)

    def validated(self, learned: Learned, rules: FusionRules, core: int) -> tuple[list[Held], dict[str, str]]:
        with pinned(core):
            return validate(self.meter, learned, rules, self.wanted.networks, partial(self.tell, "validating on whole networks"))

    def fitted(self, samples: dict[int, list[Sample]], chosen: Sequence[Place]) -> dict[str, Learned]:
        """One fit per cluster; equal cores share it under their own names."""
        by_cluster: dict[int, Learned] = {}
        for index, found in samples.items():
            if len(found) < LEAST_SAMPLES:
                few = f"{len(found)} kernels measured, {self.wanted.out}"
                raise BadInput(f"{few}, at least {LEAST_SAMPLES} are needed; give a larger --budget-s")
            self.progress("fitting", 0, 1)
            by_cluster[index] = fit(steadied(found), "", self.meter.dtype)
        return {place.name: replace(by_cluster[place.cluster], processor=place.name) for place in chosen}

    def surrounded(
        self, predictors: dict[str, Learned], rules: FusionRules, samples: dict[int, list[Sample]], chosen: Sequence[Place]
    ) -> Soc:
        """The chip around the predictors; its first processor is the caller, which hands over to the others."""
        first, contention = chosen[0], {}
        kernels = surroundings.fitting(samples[first.cluster])
        with pinned(first.core):
            self.progress("measuring what lies around kernels", 0, 1)
            merge = surroundings.merge_link(self.meter, ELEMENT_BYTES[self.meter.dtype], self.meter.call_us)
            for other in chosen[1:]:
                contention[frozenset((first.name, other.name))] = surroundings.contention(self.meter, kernels, other.core)
        call = Link(round(self.meter.call_us, 3), 0.0)
        processors = [Processor(first.name, "cpu", 1, call, asynchronous=False)]
        for other in chosen[1:]:
            sync_us = round(surroundings.handover_us(first.core, other.core), 3)
            processors.append(Processor(other.name, "cpu", 1, call, sync_us=sync_us, asynchronous=False))
        return Soc(
            name=self.wanted.out.name, processors=tuple(processors), dtype=self.meter.dtype, predictors=predictors, merge=merge,
            contention=contention, fusion={place.name: rules for place in chosen},
        )  # fmt: skip


def prepared(out: Path) -> Path:
    """The folder, made where its parent is there. Raises BadInput."""
    try:
        out.mkdir(exist_ok=True)
    except FileNotFoundError:
        raise BadInput(f"cannot write {out}, no folder {out.parent}, create it first") from None
    except FileExistsError:
        raise BadInput(f"cannot write {out}, it is a file, name a folder") from None
    except OSError as error:
        raise BadInput(f"cannot write {out}, {error.strerror}") from None
    return out


def quality(core: int, gathering: Gathering) -> str:
    """How quiet the machine was, in one sentence."""
    spreads = [sample.spread for sample in gathering.samples]
    spread = f", median spread between the quartiles {np.median(spreads):.1%}" if spreads else ""
    text = f"core {core}: {len(spreads)} kernels{spread}, {gathering.disturbed} medleys measured again"
    if gathering.refused:
        text += "; refused by the backend: " + ", ".join(f"{label} ({count})" for label, count in sorted(gathering.refused.items()))
    return text


def provenance(meter: Meter, machine: str, predictors: dict[str, Learned], rows: list[Held], kernels: int) -> str:
    """What was measured, by whom, and the held-out error, in one sentence."""
    error = next(iter(predictors.values())).relative_error
    how = f"{machine}, {meter.version}, {meter.dtype}, one pinned thread"
    text = f"measured on this machine ({how}), {kernels} kernels, left-out error {error:.1%} (rms)"
    if rows:
        found: dict[str, Any] = summary(rows)
        text += f"; {len(rows)} whole networks never sampled: mean error {found['mape']:.1%}, {found['within_10_percent']:.0%} within 10%"
    return text
