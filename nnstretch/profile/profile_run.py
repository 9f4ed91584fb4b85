"""The whole of a profile: probe, gather, fit, look around, validate, write, within one budget.

Resumes from the journal in its folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from nnstretch.errors import BadInput
from nnstretch.files.atomic import write_text
from nnstretch.files.journal import only_writer
from nnstretch.predict.learned import Learned
from nnstretch.predict.save_soc import save_soc
from nnstretch.profile.activity.activity_watch import ActivityWatch
from nnstretch.profile.activity.noise_tally import loss_line, noise_line, noise_reasons
from nnstretch.profile.backends.meter import Meter
from nnstretch.profile.backends.registry import cuda_devices, meter_at
from nnstretch.profile.budget import GROW_FAMILY_S, GROW_SAMPLE_S, Budget, Clock, plan_budget
from nnstretch.profile.card import CardFacts, card, measured_on, provenance
from nnstretch.profile.earlier_profile import (
    as_placed,
    earlier_soc,
    kept_contention,
    kept_doubts,
    kept_networks,
    kept_predictor,
)
from nnstretch.profile.fitting.fit_predictor import fit
from nnstretch.profile.machine import (
    Cluster,
    PinnedProcessor,
    clusters,
    description,
    parse_processors,
)
from nnstretch.profile.profile_request import (
    ProfileRequest,
    ProfileResult,
    Progress,
    prepare_folder,
)
from nnstretch.profile.sampling.journal import ProfileJournal, open_journal
from nnstretch.profile.sampling.sample import Sample, normalize_disturbed, representative_kernels
from nnstretch.profile.sampling_phase import LEAST_SAMPLES, Rules, SamplingPhase
from nnstretch.profile.system_costs import measure_surroundings
from nnstretch.profile.validation import HeldOutNetwork, ProfiledProcessor, summary, validate
from nnstretch.soc import Soc


@dataclass
class ProfileRun:
    """One run of it."""

    wanted: ProfileRequest
    meter: Meter
    progress: Progress
    clock: Clock = perf_counter
    watch: ActivityWatch = field(default_factory=ActivityWatch)
    budget: Budget = field(init=False)
    earlier: Soc | None = field(init=False, default=None)
    """What earlier runs left in the folder."""
    unchanged: set[int] = field(init=False, default_factory=set)
    """Clusters of which this run measured no more kernels."""

    def __post_init__(self) -> None:
        wanted = self.wanted
        self.budget = plan_budget(
            wanted.budget_s, len(wanted.networks), self.clock, wanted.started_s, self.meter.name
        )

    def run(self) -> ProfileResult:
        """Profile this machine. Raises BadInput for a folder that cannot be used or a budget too
        short to fit anything, BrokenFile for a foreign journal.
        """
        core_clusters = clusters()
        devices = cuda_devices(self.meter.name)
        places = parse_processors(self.wanted.processors, core_clusters, devices)
        folder = prepare_folder(self.wanted.out)
        with only_writer(folder):
            return self.run_in(folder, core_clusters, places)

    def run_in(
        self,
        folder: Path,
        core_clusters: tuple[Cluster, ...],
        places: tuple[PinnedProcessor, ...],
    ) -> ProfileResult:
        """Profile this machine into a folder that nobody else writes. Raises as `run`."""
        machine = description()
        head = self.journal_head(machine, core_clusters)
        journal, samples = open_journal(folder, head, self.wanted.fresh)
        earlier_s, earlier_rows = journal.spent_s, tuple(journal.networks)
        if samples:  # else the chip in the folder is what this run replaces
            earlier = earlier_soc(folder, measured_on(self.meter, machine))
            self.earlier = earlier and as_placed(earlier, journal.places, places)
        counts = {cluster: len(kept) for cluster, kept in samples.items()}
        with self.budget.spend("sampling"):
            phase = SamplingPhase(
                self.wanted, self.meter, self.progress, self.budget, self.watch, self.earlier
            )
            rules, notes, power_w = phase.run(journal, samples, places)
        samples = {place.cluster: samples[place.cluster] for place in places}
        self.unchanged = {
            index for index, kept in samples.items() if counts.get(index) == len(kept)
        }
        soc, rows, refused = self.fit_and_validate(machine, samples, rules, places, journal)
        facts = CardFacts(
            soc=soc,
            meter=self.meter,
            machine=machine,
            clusters=core_clusters,
            places=places,
            rules=rules[places[0].cluster],
            samples=samples,
            rows=rows,
            earlier_rows=frozenset(earlier_rows).intersection(rows),
            refused=refused,
            notes=notes,
            spent_s=journal.spent_s,
            earlier_s=earlier_s,
            power_w=power_w,
            budget=self.budget,
            noise=journal.noise,
        )
        write_text(folder / "CARD.md", card(facts))
        return ProfileResult(soc, samples, rows, refused, power_w, self.budget, journal.noise)

    def fit_and_validate(
        self,
        machine: str,
        samples: dict[int, list[Sample]],
        rules: Rules,
        places: Sequence[PinnedProcessor],
        journal: ProfileJournal,
    ) -> tuple[Soc, list[HeldOutNetwork], dict[str, str]]:
        """Fit, save the chip, validate it, and save it again with the errors on whole networks.

        Predictors of a noisy profile are marked as noisy. Raises BadInput when too few kernels were
        measured.
        """
        count, noise = sum(map(len, samples.values())), journal.noise
        budget_s = max(self.wanted.budget_s, journal.spent_s)  # of all runs, as the noise is
        with self.budget.spend("fitting"):
            loss = f", {loss_line(noise, budget_s)}" if noise.doubted else ""
            predictors = self.fit_predictors(samples, places, loss)
        with self.budget.spend("surroundings"):
            soc, doubts = self.describe_soc(predictors, rules, samples, places)

        def save(rows: list[HeldOutNetwork]) -> Soc:
            reasons = noise_reasons(noise, summary(rows).get("mape")) + doubts
            marked = mark_noisy(soc, noise_line(noise, budget_s, reasons))
            told = provenance(self.meter, machine, predictors, rows, count)
            save_soc(saved := replace(marked, provenance=told), self.wanted.out)
            return saved

        save(kept_networks(journal.networks, (), places))
        journal.append_places(places)
        with self.budget.spend("validation"):
            rows, refused = self.validate_networks(predictors, rules, places)
        kept = kept_networks(journal.networks, rows, places)
        journal.append_networks(rows)
        return save(kept), kept, refused

    def journal_head(self, machine: str, core_clusters: Sequence[Cluster]) -> dict[str, Any]:
        """Return what must be the same for samples to belong together."""
        return {
            "backend": self.meter.name,
            "version": self.meter.version,
            "dtype": self.meter.dtype,
            "machine": machine,
            "cores": [[cluster.max_khz, *cluster.cores] for cluster in core_clusters],
        }

    def report_progress(self, what: str, done: float, total: float, _: int | str) -> None:
        """Report progress of the validation."""
        self.progress(what, done, total)

    def validate_networks(
        self, predictors: Mapping[str, Learned], rules: Rules, places: Sequence[PinnedProcessor]
    ) -> tuple[list[HeldOutNetwork], dict[str, str]]:
        """Measure and predict the networks held out, on one processor of each cluster."""
        first_places = {place.cluster: place for place in reversed(places)}
        return validate(
            [
                ProfiledProcessor(
                    place,
                    meter_at(self.meter, place.device),
                    predictors[place.name],
                    rules[place.cluster],
                )
                for place in reversed(first_places.values())
            ],
            self.wanted.networks,
            partial(self.report_progress, "validating on whole networks"),
            self.budget,
            self.watch,
        )

    def fit_predictors(
        self,
        samples: dict[int, list[Sample]],
        places: Sequence[PinnedProcessor],
        loss: str,
    ) -> dict[str, Learned]:
        """Fit one predictor per cluster; equal cores share it under their own names.

        Raises BadInput when too few kernels were measured, with what was lost to other work.
        """
        by_cluster: dict[int, Learned] = {}
        for index, cluster_samples in samples.items():
            if len(cluster_samples) < LEAST_SAMPLES:
                few = f"{len(cluster_samples)} kernels measured, {self.wanted.out}"
                raise BadInput(
                    f"{few}, at least {LEAST_SAMPLES} are needed; give a larger budget{loss}"
                )
            self.progress("fitting", 0, 1)
            steady = normalize_disturbed(cluster_samples)
            by_cluster[index] = fit(steady, "", self.meter.dtype, may_grow=self.may_grow)
        return {
            place.name: replace(self.fitted(by_cluster, place), processor=place.name)
            for place in places
        }

    def fitted(self, by_cluster: Mapping[int, Learned], place: PinnedProcessor) -> Learned:
        """Return the predictor of a processor, the earlier one where it has more to it."""
        earlier = self.earlier if place.cluster in self.unchanged else None
        return kept_predictor(earlier, place.name, by_cluster[place.cluster])

    def may_grow(self, family: str, count: int) -> bool:
        """Return whether there is time to grow trees for a family of so many samples."""
        what = f"trees of {family}, {count} kernels"
        return self.budget.allows("fitting", GROW_FAMILY_S + GROW_SAMPLE_S * count, what)

    def describe_soc(
        self,
        predictors: dict[str, Learned],
        rules: Rules,
        samples: dict[int, list[Sample]],
        places: Sequence[PinnedProcessor],
    ) -> tuple[Soc, list[str]]:
        """Return the chip around the predictors, and what others kept from being measured."""
        self.progress("measuring what lies around kernels", 0, 1)
        kernels = representative_kernels(samples[places[0].cluster])
        meters = {place.name: meter_at(self.meter, place.device) for place in places}
        known = self.earlier.contention if self.earlier is not None else ()
        costs = measure_surroundings(meters, places, kernels, self.budget, self.watch, known)
        names = list(meters)
        soc = Soc(
            name=self.wanted.out.resolve().name,
            processors=costs.processors,
            dtype=self.meter.dtype,
            predictors=predictors,
            merge=costs.merge,
            contention=kept_contention(self.earlier, costs, names),
            fusion={place.name: rules[place.cluster] for place in places},
        )
        return soc, kept_doubts(self.earlier, costs, places)


def mark_noisy(soc: Soc, line: str) -> Soc:
    """Return a chip whose predictors say why they are noisy; an empty line unmarks them."""
    marked = {
        name: replace(predictor, noisy=line) if isinstance(predictor, Learned) else predictor
        for name, predictor in soc.predictors.items()
    }
    return replace(soc, predictors=marked)
