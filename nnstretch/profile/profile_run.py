"""The whole of a profile: probe, gather, fit, look around, validate, write, within one budget.

Resumes from the journal in its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from nnstretch.errors import BadInput
from nnstretch.files.atomic import write_text
from nnstretch.graph import Graph
from nnstretch.kernel import FusionRules
from nnstretch.predict.learned import Learned
from nnstretch.predict.load_soc import load_soc
from nnstretch.predict.save_soc import save_soc
from nnstretch.profile import energy
from nnstretch.profile.backends.meter import Meter
from nnstretch.profile.backends.registry import cuda_devices, meter_for
from nnstretch.profile.budget import GROW_S, Budget, Clock, plan_budget
from nnstretch.profile.card import CardFacts, card, provenance, quality
from nnstretch.profile.fit_predictor import fit
from nnstretch.profile.fusion_probe import fused_pairs
from nnstretch.profile.machine import (
    Cluster,
    PinnedProcessor,
    clusters,
    description,
    parse_processors,
    pin_process,
)
from nnstretch.profile.sampling.journal import ProfileJournal, open_journal, remove_journal
from nnstretch.profile.sampling.kernel_generator import load_prior
from nnstretch.profile.sampling.kernel_sampler import KernelSampler
from nnstretch.profile.sampling.sample import Sample, normalize_disturbed
from nnstretch.profile.sampling.targets import target_kernels
from nnstretch.profile.system_costs import measure_surroundings, representative_kernels
from nnstretch.profile.uncertainty import relative_errors
from nnstretch.profile.validation import HeldOutNetwork, validate
from nnstretch.soc import Soc

LEAST_SAMPLES = 50
PROBE_SHARE = 0.4
"""Of the time planned for sampling a cluster, at most, for probing what its backend fuses."""
PER_CORE = ("recording_us", "harness_us", "framing_us", "call_us")
"""What meters remember of the harness; another core has its own."""
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
    targets: tuple[Graph, ...] = ()
    """Networks whose kernels are measured first; the budget is then this run's alone."""
    started_s: float = -1.0
    """When the budget began, by the clock; when the run begins, where it is negative."""


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """What came out, beside the files."""

    soc: Soc
    samples: dict[int, list[Sample]]
    rows: list[HeldOutNetwork]
    refused: dict[str, str]
    power_w: float | None
    """Mean while kernels were measured; None where the platform does not tell."""
    budget: Budget
    """What each phase took, and what there was no time for."""

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
    clock: Clock = perf_counter
    budget: Budget = field(init=False)

    def __post_init__(self) -> None:
        wanted = self.wanted
        networks = len(wanted.networks)
        self.budget = plan_budget(wanted.budget_s, networks, self.clock, wanted.started_s)

    def run(self) -> ProfileResult:
        """Profile this machine. Raises BadInput for a folder that cannot be used or a budget too
        short to fit anything, BrokenFile for a foreign journal.
        """
        core_clusters = clusters()
        chosen = parse_processors(
            self.wanted.processors, core_clusters, cuda_devices(self.meter.name)
        )
        folder, machine = prepare_folder(self.wanted.out), description()
        if self.wanted.fresh:
            remove_journal(folder)
        journal, samples = open_journal(folder, self.journal_head(machine, core_clusters))
        earlier_s, joules = journal.spent_s, energy.open_energy_meter()
        before_j, before_s = joules.joules() if joules else 0.0, perf_counter()
        with self.budget.spend("sampling"):
            rules, notes = self.sample_clusters(journal, samples, chosen)
        power_w = (
            (joules.joules() - before_j) / (perf_counter() - before_s)
            if joules and journal.spent_s > earlier_s
            else None
        )
        samples = {place.cluster: samples[place.cluster] for place in chosen}
        count = sum(map(len, samples.values()))
        with self.budget.spend("fitting"):
            predictors = self.fit_predictors(samples, chosen)
        with self.budget.spend("surroundings"):
            soc = self.describe_soc(predictors, rules, samples, chosen)
        soc = replace(soc, provenance=provenance(self.meter, machine, predictors, [], count))
        save_soc(soc, folder)
        with self.budget.spend("validation"):
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
            self.budget,
        )
        write_text(folder / "CARD.md", card(facts))
        return ProfileResult(soc, samples, rows, refused, power_w, self.budget)

    def journal_head(self, machine: str, core_clusters: Sequence[Cluster]) -> dict[str, Any]:
        """Return what must be the same for samples to belong together."""
        return {
            "backend": self.meter.name,
            "version": self.meter.version,
            "dtype": self.meter.dtype,
            "machine": machine,
            "cores": [[cluster.max_khz, *cluster.cores] for cluster in core_clusters],
        }

    def sample_clusters(
        self,
        journal: ProfileJournal,
        samples: dict[int, list[Sample]],
        chosen: Sequence[PinnedProcessor],
    ) -> tuple[Rules, list[str]]:
        """Sample kernels; every cluster gets an equal share of what the budget has for it."""
        first = {place.cluster: place for place in reversed(chosen)}
        left_s = self.budget.left_s("sampling")
        if not self.wanted.targets:
            left_s = min(left_s, self.budget.planned_s["sampling"] - journal.spent_s)
        each_s = max(0.0, left_s) / len(first)
        probe_s = PROBE_SHARE * self.budget.planned_s["sampling"] / len(first)
        known = self.known_rules()
        rules: Rules = {}
        notes: list[str] = []
        for place in reversed(first.values()):
            meter = self.meter_of(place)
            where = f"core {place.core}" if place.device == "cpu" else place.device
            started_s = self.clock()
            with pin_process(place.core):
                for cached in PER_CORE:
                    vars(meter).pop(cached, None)
                rules[place.cluster] = known.get(place.name) or self.probe_fusion(
                    meter, journal, probe_s
                )
                sampler = KernelSampler(
                    meter,
                    rules[place.cluster],
                    load_prior(),
                    journal,
                    place.cluster,
                    samples.setdefault(place.cluster, []),
                    self.wanted.seed,
                    target_kernels(self.wanted.targets, rules[place.cluster]),
                    self.clock,
                )
                sampler.run(
                    each_s - (self.clock() - started_s),
                    self.wanted.most,
                    self.find_doubts,
                    partial(self.report_progress, f"measuring kernels on {where}"),
                )
            if sampler.unmeasured_targets:
                self.budget.skipped.append(
                    f"{sampler.unmeasured_targets} of {len(sampler.targets)} kernels of the"
                    f" networks named, on {where}"
                )
            notes.append(quality(where, sampler))
        return rules, notes

    def meter_of(self, place: PinnedProcessor) -> Meter:
        """Return the meter at hand, or one of the same backend for an accelerator."""
        return (
            self.meter
            if place.device == "cpu"
            else meter_for(self.meter.name, self.meter.dtype, place.device)
        )

    def known_rules(self) -> Mapping[str, FusionRules]:
        """Return the rules in a folder that is only extended, by processor: none where it is new.

        Its samples were drawn by them, and a short run has no time to probe them all.
        """
        if not self.wanted.targets or not (self.wanted.out / "soc.json").is_file():
            return {}
        soc = load_soc(self.wanted.out)
        return {processor.name: soc.rules(processor.name) for processor in soc.processors}

    def probe_fusion(self, meter: Meter, journal: ProfileJournal, allowed_s: float) -> FusionRules:
        """Return the backend's fusion rules; what is not probed in time is not fused."""
        started_s = self.clock()
        unprobed = 0

        def may_probe(chains: int) -> bool:
            nonlocal unprobed
            in_time = self.clock() - started_s < allowed_s
            unprobed += 0 if in_time else chains
            return in_time

        self.progress(f"probing what {meter.name} fuses", 0, 1)
        rules = meter.rules or fused_pairs(meter, may_probe)
        if unprobed:
            self.budget.skipped.append(f"{unprobed} probes of fusion, taken as not fused")
        journal.spend(self.clock() - started_s)
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
                self.budget,
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
            steady = normalize_disturbed(cluster_samples)
            by_cluster[index] = fit(steady, "", self.meter.dtype, may_grow=self.may_grow)
        return {
            place.name: replace(by_cluster[place.cluster], processor=place.name) for place in chosen
        }

    def may_grow(self, family: str, count: int) -> bool:
        """Return whether there is time to grow trees for a family of so many samples."""
        what = f"trees of {family}, {count} kernels"
        return self.budget.allows("fitting", GROW_S * count, what)

    def describe_soc(
        self,
        predictors: dict[str, Learned],
        rules: Rules,
        samples: dict[int, list[Sample]],
        chosen: Sequence[PinnedProcessor],
    ) -> Soc:
        """Return the chip around the predictors."""
        self.progress("measuring what lies around kernels", 0, 1)
        kernels = representative_kernels(samples[chosen[0].cluster])
        meters = {place.name: self.meter_of(place) for place in chosen}
        costs = measure_surroundings(meters, chosen, kernels, self.budget)
        return Soc(
            name=self.wanted.out.resolve().name,
            processors=costs.processors,
            dtype=self.meter.dtype,
            predictors=predictors,
            merge=costs.merge,
            contention=costs.contention,
            fusion={place.name: rules[place.cluster] for place in chosen},
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
