"""The whole of a profile: probe, gather, fit, look around, validate, write, within one budget.

Resumes from the journal in its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

from nnstretch.errors import BadInput
from nnstretch.files.atomic import write_text
from nnstretch.kernel import FusionRules
from nnstretch.predict.learned import Learned
from nnstretch.predict.load_soc import load_soc
from nnstretch.predict.save_soc import save_soc
from nnstretch.profile import energy
from nnstretch.profile.backends.meter import Meter
from nnstretch.profile.backends.registry import cuda_devices, meter_for
from nnstretch.profile.budget import GROW_S, Budget, Clock, plan_budget
from nnstretch.profile.card import CardFacts, card, provenance, quality
from nnstretch.profile.fitting.fit_predictor import fit
from nnstretch.profile.fusion_probe import fused_pairs
from nnstretch.profile.machine import (
    Cluster,
    PinnedProcessor,
    clusters,
    description,
    parse_processors,
    pin_process,
)
from nnstretch.profile.profile_request import ProfileRequest, ProfileResult, prepare_folder
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
        devices = cuda_devices(self.meter.name)
        places = parse_processors(self.wanted.processors, core_clusters, devices)
        folder, machine = prepare_folder(self.wanted.out), description()
        if self.wanted.fresh:
            remove_journal(folder)
        journal, samples = open_journal(folder, self.journal_head(machine, core_clusters))
        earlier_s = journal.spent_s
        with self.budget.spend("sampling"):
            rules, notes, power_w = self.sample_with_power(journal, samples, places)
        samples = {place.cluster: samples[place.cluster] for place in places}
        soc, rows, refused = self.fit_and_validate(machine, samples, rules, places)
        facts = CardFacts(
            soc=soc,
            meter=self.meter,
            machine=machine,
            clusters=core_clusters,
            places=places,
            rules=rules[places[0].cluster],
            samples=samples,
            rows=rows,
            refused=refused,
            notes=notes,
            spent_s=journal.spent_s,
            earlier_s=earlier_s,
            power_w=power_w,
            budget=self.budget,
        )
        write_text(folder / "CARD.md", card(facts))
        return ProfileResult(soc, samples, rows, refused, power_w, self.budget)

    def fit_and_validate(
        self,
        machine: str,
        samples: dict[int, list[Sample]],
        rules: Rules,
        places: Sequence[PinnedProcessor],
    ) -> tuple[Soc, list[HeldOutNetwork], dict[str, str]]:
        """Fit, save the chip, validate it, and save it again with the errors on whole networks."""
        count = sum(map(len, samples.values()))
        with self.budget.spend("fitting"):
            predictors = self.fit_predictors(samples, places)
        with self.budget.spend("surroundings"):
            soc = self.describe_soc(predictors, rules, samples, places)
        soc = replace(soc, provenance=provenance(self.meter, machine, predictors, [], count))
        save_soc(soc, self.wanted.out)
        first = places[0]
        with self.budget.spend("validation"):
            learned = predictors[first.name]
            rows, refused = self.validate_networks(learned, rules[first.cluster], first.core)
        soc = replace(soc, provenance=provenance(self.meter, machine, predictors, rows, count))
        save_soc(soc, self.wanted.out)
        return soc, rows, refused

    def sample_with_power(
        self,
        journal: ProfileJournal,
        samples: dict[int, list[Sample]],
        places: Sequence[PinnedProcessor],
    ) -> tuple[Rules, list[str], float | None]:
        """Sample kernels; return rules, notes, and mean power where kernels were measured."""
        earlier_s = journal.spent_s
        counter = energy.open_energy_meter()
        before_j, before_s = counter.joules() if counter else 0.0, perf_counter()
        rules, notes = self.sample_clusters(journal, samples, places)
        if counter is None or journal.spent_s <= earlier_s:
            return rules, notes, None
        return rules, notes, (counter.joules() - before_j) / (perf_counter() - before_s)

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
        places: Sequence[PinnedProcessor],
    ) -> tuple[Rules, list[str]]:
        """Sample kernels; every cluster gets an equal share of what the budget has for it."""
        first_places = {place.cluster: place for place in reversed(places)}
        sampling_s = self.budget.left_s("sampling")
        if not self.wanted.targets:
            sampling_s = min(sampling_s, self.budget.planned_s["sampling"] - journal.spent_s)
        cluster_s = max(0.0, sampling_s) / len(first_places)
        probe_s = PROBE_SHARE * self.budget.planned_s["sampling"] / len(first_places)
        known = self.known_rules()
        rules: Rules = {}
        notes: list[str] = []
        for place in reversed(first_places.values()):
            meter = self.meter_of(place)
            started_s = self.clock()
            with pin_process(place.core):
                for remembered in PER_CORE:
                    vars(meter).pop(remembered, None)
                probed = known.get(place.name) or self.probe_fusion(meter, journal, probe_s)
                rules[place.cluster] = probed
                of_cluster = samples.setdefault(place.cluster, [])
                sampler = self.sampler_of(meter, probed, journal, place, of_cluster)
                report = partial(self.report_progress, f"measuring kernels on {where(place)}")
                remaining_s = cluster_s - (self.clock() - started_s)
                sampler.run(remaining_s, self.wanted.most, self.find_doubts, report)
            if sampler.unmeasured_targets:
                self.budget.skipped.append(
                    f"{sampler.unmeasured_targets} of {len(sampler.targets)} kernels of the"
                    f" networks named, on {where(place)}"
                )
            notes.append(quality(where(place), sampler))
        return rules, notes

    def sampler_of(
        self,
        meter: Meter,
        rules: FusionRules,
        journal: ProfileJournal,
        place: PinnedProcessor,
        samples: list[Sample],
    ) -> KernelSampler:
        """Return the sampler of one cluster, which adds to its samples."""
        return KernelSampler(
            meter,
            rules,
            load_prior(),
            journal,
            place.cluster,
            samples,
            self.wanted.seed,
            target_kernels(self.wanted.targets, rules),
            self.clock,
        )

    def meter_of(self, place: PinnedProcessor) -> Meter:
        """Return the meter at hand, or one of the same backend for an accelerator."""
        if place.device == "cpu":
            return self.meter
        return meter_for(self.meter.name, self.meter.dtype, place.device)

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
        self, samples: dict[int, list[Sample]], places: Sequence[PinnedProcessor]
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
            place.name: replace(by_cluster[place.cluster], processor=place.name) for place in places
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
        places: Sequence[PinnedProcessor],
    ) -> Soc:
        """Return the chip around the predictors."""
        self.progress("measuring what lies around kernels", 0, 1)
        kernels = representative_kernels(samples[places[0].cluster])
        meters = {place.name: self.meter_of(place) for place in places}
        costs = measure_surroundings(meters, places, kernels, self.budget)
        return Soc(
            name=self.wanted.out.resolve().name,
            processors=costs.processors,
            dtype=self.meter.dtype,
            predictors=predictors,
            merge=costs.merge,
            contention=costs.contention,
            fusion={place.name: rules[place.cluster] for place in places},
        )


def where(place: PinnedProcessor) -> str:
    """Return a processor for messages."""
    return f"core {place.core}" if place.device == "cpu" else place.device
