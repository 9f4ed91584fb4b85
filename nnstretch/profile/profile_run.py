"""The whole of a profile: probe, gather, fit, look around, validate, write.

Resumes from the journal in its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from nnstretch.errors import BadInput
from nnstretch.files.atomic import write_text
from nnstretch.graph import ELEMENT_BYTES
from nnstretch.kernel import FusionRules
from nnstretch.predict.learned import Learned
from nnstretch.predict.save_soc import save_soc
from nnstretch.profile import energy
from nnstretch.profile import system_costs as surroundings
from nnstretch.profile.backends.meter import Meter
from nnstretch.profile.backends.registry import cuda_devices, meter_for
from nnstretch.profile.card import CardFacts, card
from nnstretch.profile.fit_predictor import fit
from nnstretch.profile.fusion_probe import fused_pairs
from nnstretch.profile.machine import (
    PinnedProcessor,
    clusters,
    description,
    parse_processors,
    pin_process,
)
from nnstretch.profile.sampling.journal import NAME, ProfileJournal, open_journal
from nnstretch.profile.sampling.kernel_generator import load_prior
from nnstretch.profile.sampling.kernel_sampler import KernelSampler
from nnstretch.profile.sampling.sample import Sample, normalize_disturbed
from nnstretch.profile.uncertainty import relative_errors
from nnstretch.profile.validation import HeldOutNetwork, summary, validate
from nnstretch.soc import Link, Processor, Soc

LEAST_SAMPLES = 50
PER_CORE = ("recording_us", "harness_us", "framing_us", "call_us")
"""What meters remember of the harness; another core has its own."""
QUEUED = 4
"""Sub-graphs that may wait on an accelerator's stream."""
Rules = dict[int, FusionRules]
"""By cluster."""
Progress = Callable[[str, float, float], None]
"""What is being done, how far, of how much."""


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """What somebody asked for."""

    out: Path
    budget_s: float
    processors: str | None = None
    networks: tuple[str, ...] = ()
    """To validate on; none of them is sampled."""
    seed: int = 0
    fresh: bool = False
    """Forget what was measured into the folder before."""
    most: int = 20_000
    """Kernels on one core; more take longer to fit than they tell."""


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """What came out, beside the files."""

    soc: Soc
    samples: dict[int, list[Sample]]
    rows: list[HeldOutNetwork]
    refused: dict[str, str]
    seconds: float
    power_w: float | None
    """Mean while kernels were measured; None where the platform does not tell."""

    @property
    def kernels(self) -> int:
        """Return how many kernels were measured."""
        return sum(map(len, self.samples.values()))


@dataclass
class ProfileRun:
    """One run of it."""

    wanted: ProfileRequest
    meter: Meter
    progress: Progress

    def run(self) -> ProfileResult:
        """Profile this machine. Raises BadInput for a folder that cannot be used or a budget too
        short to fit anything, BrokenFile for a foreign journal.
        """
        started = perf_counter()
        core_clusters = clusters()
        chosen = parse_processors(
            self.wanted.processors, core_clusters, cuda_devices(self.meter.name)
        )
        folder, machine = prepare_folder(self.wanted.out), description()
        cores = [[cluster.max_khz, *cluster.cores] for cluster in core_clusters]
        head = {
            "backend": self.meter.name,
            "version": self.meter.version,
            "dtype": self.meter.dtype,
            "machine": machine,
            "cores": cores,
        }
        if self.wanted.fresh:
            remove_journal(folder)
        journal, samples = open_journal(folder, head)
        earlier_s, joules = journal.spent_s, energy.open_energy_meter()
        before_j, before_s = joules.joules() if joules else 0.0, perf_counter()
        rules, notes = self.sample_clusters(journal, samples, chosen)
        power_w = (
            (joules.joules() - before_j) / (perf_counter() - before_s)
            if joules and journal.spent_s > earlier_s
            else None
        )
        samples = {place.cluster: samples[place.cluster] for place in chosen}
        count = sum(map(len, samples.values()))
        predictors = self.fit_predictors(samples, chosen)
        soc = self.describe_soc(predictors, rules, samples, chosen)
        soc = replace(soc, provenance=provenance(self.meter, machine, predictors, [], count))
        save_soc(soc, folder)
        rows, refused = self.validate_networks(
            predictors[chosen[0].name], rules[chosen[0].cluster], chosen[0].core
        )
        soc = replace(soc, provenance=provenance(self.meter, machine, predictors, rows, count))
        save_soc(soc, folder)
        facts = CardFacts(
            soc,
            self.meter,
            machine,
            core_clusters,
            chosen,
            rules[chosen[0].cluster],
            samples,
            rows,
            refused,
            notes,
            journal.spent_s,
            earlier_s,
            power_w,
        )
        write_text(folder / "CARD.md", card(facts))
        return ProfileResult(soc, samples, rows, refused, perf_counter() - started, power_w)

    def sample_clusters(
        self,
        journal: ProfileJournal,
        samples: dict[int, list[Sample]],
        chosen: Sequence[PinnedProcessor],
    ) -> tuple[Rules, list[str]]:
        """Sample kernels; every cluster gets an equal share of the budget."""
        first = {place.cluster: place for place in reversed(chosen)}
        left_s = max(0.0, self.wanted.budget_s - journal.spent_s) / len(first)
        rules: Rules = {}
        notes = []
        for place in reversed(first.values()):
            until_s, meter = journal.spent_s + left_s, self.meter_of(place)
            where = f"core {place.core}" if place.device == "cpu" else place.device
            with pin_process(place.core):
                for cached in PER_CORE:
                    vars(meter).pop(cached, None)
                rules[place.cluster] = self.probe_fusion(meter, journal)
                cluster_samples = samples.setdefault(place.cluster, [])
                gathering = KernelSampler(
                    meter,
                    rules[place.cluster],
                    load_prior(),
                    journal,
                    place.cluster,
                    cluster_samples,
                    self.wanted.seed,
                )
                gathering.run(
                    until_s,
                    self.wanted.most,
                    self.find_doubts,
                    partial(self.report_progress, f"measuring kernels on {where}"),
                )
            notes.append(quality(where, gathering))
        return rules, notes

    def meter_of(self, place: PinnedProcessor) -> Meter:
        """Return the meter at hand, or one of the same backend for an accelerator."""
        return (
            self.meter
            if place.device == "cpu"
            else meter_for(self.meter.name, self.meter.dtype, place.device)
        )

    def probe_fusion(self, meter: Meter, journal: ProfileJournal) -> FusionRules:
        """Return the backend's fusion rules, probed once and kept in the journal."""
        started = perf_counter()
        self.progress(f"probing what {meter.name} fuses", 0, 1)
        rules = meter.rules or fused_pairs(meter)
        journal.spend(perf_counter() - started)
        return rules

    def find_doubts(self, samples: Sequence[Sample]) -> Sequence[float]:
        """Return how badly each sample is predicted by the others."""
        return relative_errors(normalize_disturbed(samples), self.meter.dtype).tolist()

    def report_progress(self, what: str, done: float, total: float, _: int | str) -> None:
        """Report progress of the validation."""
        self.progress(what, done, total)

    def validate_networks(
        self, learned: Learned, rules: FusionRules, core: int
    ) -> tuple[list[HeldOutNetwork], dict[str, str]]:
        """Measure and predict the networks held out."""
        with pin_process(core):
            return validate(
                self.meter,
                learned,
                rules,
                self.wanted.networks,
                partial(self.report_progress, "validating on whole networks"),
            )

    def fit_predictors(
        self, samples: dict[int, list[Sample]], chosen: Sequence[PinnedProcessor]
    ) -> dict[str, Learned]:
        """Fit one predictor per cluster; equal cores share it under their own names.

        Raises BadInput when too few kernels were measured.
        """
        by_cluster: dict[int, Learned] = {}
        for index, cluster_samples in samples.items():
            if len(cluster_samples) < LEAST_SAMPLES:
                few = f"{len(cluster_samples)} kernels measured, {self.wanted.out}"
                raise BadInput(
                    f"{few}, at least {LEAST_SAMPLES} are needed; give a larger --budget-s"
                )
            self.progress("fitting", 0, 1)
            by_cluster[index] = fit(normalize_disturbed(cluster_samples), "", self.meter.dtype)
        return {
            place.name: replace(by_cluster[place.cluster], processor=place.name) for place in chosen
        }

    def describe_soc(
        self,
        predictors: dict[str, Learned],
        rules: Rules,
        samples: dict[int, list[Sample]],
        chosen: Sequence[PinnedProcessor],
    ) -> Soc:
        """Return the chip around the predictors.

        Its first processor is the caller, which hands over to the others.
        """
        first, contention = chosen[0], {}
        kernels = surroundings.representative_kernels(samples[first.cluster])
        with pin_process(first.core):
            self.progress("measuring what lies around kernels", 0, 1)
            merge = surroundings.merge_link(
                self.meter, ELEMENT_BYTES[self.meter.dtype], self.meter.call_us
            )
            for second in (place for place in chosen[1:] if place.device == "cpu"):
                factor = surroundings.measure_contention(self.meter, kernels, second.core)
                if factor is not None:
                    contention[frozenset((first.name, second.name))] = factor
        call = Link(round(self.meter.call_us, 3), 0.0)
        processors = [Processor(first.name, "cpu", 1, call, asynchronous=False)]
        processors += [self.processor(place, first, call) for place in chosen[1:]]
        return Soc(
            name=self.wanted.out.resolve().name,
            processors=tuple(processors),
            dtype=self.meter.dtype,
            predictors=predictors,
            merge=merge,
            contention=contention,
            fusion={place.name: rules[place.cluster] for place in chosen},
        )

    def processor(self, place: PinnedProcessor, first: PinnedProcessor, call: Link) -> Processor:
        """Return a processor that the first hands over to.

        Through a queue and another core, or through copies and a stream.
        """
        if place.device == "cpu":
            sync_us = round(surroundings.queue_round_trip_us(first.core, place.core), 3)
            return Processor(place.name, "cpu", 1, call, sync_us=sync_us, asynchronous=False)
        copy_in, copy_out = surroundings.measure_copies(place.device)
        return Processor(
            place.name, "gpu", QUEUED, copy_in, copy_out, round(self.meter_of(place).call_us, 3)
        )


def prepare_folder(out: Path) -> Path:
    """Return the folder, made where its parent is there. Raises BadInput."""
    try:
        out.mkdir(exist_ok=True)
    except FileNotFoundError:
        raise BadInput(f"cannot write {out}, no folder {out.parent}, create it first") from None
    except FileExistsError:
        raise BadInput(f"cannot write {out}, it is a file, name a folder") from None
    except OSError as error:
        raise BadInput(f"cannot write {out}, {error.strerror}") from None
    return out


def remove_journal(folder: Path) -> None:
    """Remove the journal. Raises BadInput."""
    try:
        (folder / NAME).unlink(missing_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot remove {folder / NAME}, {error.strerror}, --fresh asks for it"
        ) from None


def quality(where: str, gathering: KernelSampler) -> str:
    """Return how quiet the machine was, in one sentence."""
    spreads = [sample.spread for sample in gathering.samples]
    spread = f", median spread between the quartiles {np.median(spreads):.1%}" if spreads else ""
    text = f"{where}: {len(spreads)} kernels{spread}, {gathering.disturbed} medleys measured again"
    if gathering.refused:
        text += "; refused by the backend: " + ", ".join(
            f"{label} ({count})" for label, count in sorted(gathering.refused.items())
        )
    return text


def provenance(
    meter: Meter,
    machine: str,
    predictors: dict[str, Learned],
    rows: list[HeldOutNetwork],
    kernels: int,
) -> str:
    """Return what was measured, by whom, and the held-out error, in one sentence."""
    error = next(iter(predictors.values())).relative_error
    how = f"{machine}, {meter.version}, {meter.dtype}, one pinned thread"
    text = f"measured on this machine ({how}), {kernels} kernels, left-out error {error:.1%} (rms)"
    if rows:
        facts: dict[str, Any] = summary(rows)
        text += (
            f"; {len(rows)} whole networks never sampled: mean error {facts['mape']:.1%},"
            f" {facts['within_10_percent']:.0%} within 10%"
        )
    return text
