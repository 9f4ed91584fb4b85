"""Sampling of a profile: probe what a backend fuses, measure kernels on a core a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from nnstretch.kernel import FusionRules
from nnstretch.profile import energy
from nnstretch.profile.activity.activity_watch import PAUSES, ActivityWatch
from nnstretch.profile.backends.meter import Meter
from nnstretch.profile.backends.registry import cuda_uuid, meter_at
from nnstretch.profile.budget import Budget
from nnstretch.profile.card import quality
from nnstretch.profile.fusion_probe import fused_pairs
from nnstretch.profile.machine import PinnedProcessor, pin_process
from nnstretch.profile.profile_request import ProfileRequest, Progress
from nnstretch.profile.sampling.journal import ProfileJournal
from nnstretch.profile.sampling.kernel_generator import load_prior
from nnstretch.profile.sampling.kernel_sampler import KernelSampler
from nnstretch.profile.sampling.sample import Sample, normalize_disturbed
from nnstretch.profile.sampling.targets import target_kernels
from nnstretch.profile.uncertainty import relative_errors
from nnstretch.soc import Soc

PROBE_SHARE = 0.4
"""Of the time planned for sampling a cluster, at most, for probing what its backend fuses."""
LEAST_SAMPLES = 50
"""Kernels of a cluster that a predictor is fitted to, at least."""
PER_CORE = ("recording_us", "harness_us", "framing_us", "call_us")
"""What meters remember of the harness; another core has its own."""
Rules = dict[int, FusionRules]
"""By cluster."""


@dataclass
class SamplingPhase:
    """What sampling needs of a run."""

    wanted: ProfileRequest
    meter: Meter
    progress: Progress
    budget: Budget
    watch: ActivityWatch
    earlier: Soc | None = None
    """What the folder holds of earlier runs."""

    def run(
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

    def sample_clusters(
        self,
        journal: ProfileJournal,
        samples: dict[int, list[Sample]],
        places: Sequence[PinnedProcessor],
    ) -> tuple[Rules, list[str]]:
        """Sample kernels; every cluster gets an equal share of what the budget has for it."""
        first_places = {place.cluster: place for place in reversed(places)}
        sampling_s = self.budget.left_s("sampling")
        self.watch.pausable_s = PAUSES * sampling_s
        kernels = [len(samples.get(cluster, ())) for cluster in first_places]
        if not (self.wanted.targets or self.is_doubtful or min(kernels) < LEAST_SAMPLES):
            sampling_s = min(sampling_s, self.budget.planned_s["sampling"] - journal.spent_s)
        cluster_s = max(0.0, sampling_s) / len(first_places)
        probe_s = PROBE_SHARE * self.budget.planned_s["sampling"] / len(first_places)
        rules: Rules = {}
        notes: list[str] = []
        for place in reversed(first_places.values()):
            meter = meter_at(self.meter, place.device)
            started_s = self.budget.clock()
            uuid = cuda_uuid(place.device)
            device_energy = energy.open_energy_meter(gpu_uuid=uuid) if uuid else None
            before_j = device_energy.joules() if device_energy else 0.0
            with pin_process(place.core):
                for remembered in PER_CORE:
                    vars(meter).pop(remembered, None)
                probed = self.rules_of(place, meter, journal, probe_s)
                rules[place.cluster] = probed
                of_cluster = samples.setdefault(place.cluster, [])
                sampler = self.sampler_of(meter, probed, journal, place, of_cluster)
                report = partial(self.report_progress, f"measuring kernels on {place.where}")
                remaining_s = cluster_s - (self.budget.clock() - started_s)
                sampler.run(remaining_s, self.wanted.most, self.find_doubts, report)
            if sampler.unmeasured_targets:
                self.budget.skipped.append(
                    f"{sampler.unmeasured_targets} of {len(sampler.targets)} kernels of the"
                    f" networks named, on {place.where}"
                )
            notes.append(quality(place.where, sampler))
            if device_energy:
                power_w = (device_energy.joules() - before_j) / (self.budget.clock() - started_s)
                notes.append(f"{place.where}: mean power {power_w:.0f} W, {device_energy.source}")
        return rules, notes

    @property
    def is_doubtful(self) -> bool:
        """Return whether others disturbed earlier runs, so that their time does not count."""
        return self.earlier is not None and bool(self.earlier.noisy)

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
            self.watch,
            self.wanted.seed,
            target_kernels(self.wanted.targets, rules),
            clock=self.budget.clock,
        )

    def rules_of(
        self, place: PinnedProcessor, meter: Meter, journal: ProfileJournal, allowed_s: float
    ) -> FusionRules:
        """Return the fusion rules of a processor: the earlier ones where networks are only added.

        Its samples were drawn by them, and a short run has no time to probe them all.
        """
        if self.earlier is None or place.name not in self.earlier.processor_names:
            return self.probe_fusion(meter, journal, allowed_s, None)
        known = self.earlier.rules(place.name)
        if self.wanted.targets:
            return known
        return self.probe_fusion(meter, journal, allowed_s, known)

    def probe_fusion(
        self, meter: Meter, journal: ProfileJournal, allowed_s: float, known: FusionRules | None
    ) -> FusionRules:
        """Return the backend's fusion rules; what is not probed in time is as it was known."""
        started_s = self.budget.clock()
        unprobed = 0

        def may_probe(chains: int) -> bool:
            nonlocal unprobed
            in_time = self.budget.clock() - started_s < allowed_s
            unprobed += 0 if in_time else chains
            return in_time

        self.progress(f"probing what {meter.name} fuses", 0, 1)
        pairs = known.pairs if known is not None else frozenset()
        rules = meter.rules or fused_pairs(meter, may_probe, pairs)
        if unprobed:
            taken = "not fused" if known is None else "before"
            self.budget.skipped.append(f"{unprobed} probes of fusion, taken as {taken}")
        journal.spend(self.budget.clock() - started_s)
        return rules

    def find_doubts(self, samples: Sequence[Sample]) -> Sequence[float]:
        """Return how badly each sample is predicted by the others."""
        return relative_errors(normalize_disturbed(samples), self.meter.dtype).tolist()

    def report_progress(self, what: str, done: float, total: float, _: int | str) -> None:
        """Report progress of the measurements."""
        self.progress(what, done, total)
