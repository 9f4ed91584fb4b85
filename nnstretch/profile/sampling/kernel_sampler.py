"""Measure kernels until the budget is spent.

First those of networks that were named, and others near them; then what networks use, then more of
what is still told badly.

Kernels over maps of one size take turns in a medley, because they stand side by side in networks,
too: large maps push weights out of the near caches, small ones do not, so how long a kernel takes
depends on its company. Every medley carries a reference kernel; where it runs slower than it can,
or others took the core away, the medley is measured again. Kernels without enough undisturbed
rounds are not kept (`activity/steady_rounds.py`); what stays slow is corrected by the reference
(`normalize_disturbed`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter

import numpy as np

from nnstretch._interpreter import PausedCollector
from nnstretch.kernel import FusionRules, Kernel
from nnstretch.profile.activity.activity_watch import ActivityWatch
from nnstretch.profile.activity.noise_tally import NO_NOISE, NoiseTally
from nnstretch.profile.activity.steady_rounds import (
    Attempt,
    may_stop,
    merge_attempts,
    steady_rounds,
)
from nnstretch.profile.backends.meter import Meter
from nnstretch.profile.sampling.journal import ProfileJournal
from nnstretch.profile.sampling.kernel_generator import (
    KernelPrior,
    generate_kernels,
    perturb_kernel,
)
from nnstretch.profile.sampling.kernel_spec import KernelSpec, kernel_of_spec
from nnstretch.profile.sampling.medleys import MEDLEY, kernel_groups, kernel_size
from nnstretch.profile.sampling.sample import TOLERATED, Sample

CHUNK = 10 * MEDLEY
ROUNDS = 12
RETRIES = 2
PRIOR_SHARE = 0.55
"""Of the budget, before kernels are chosen by how badly they are told."""
BAD = 0.10
NEIGHBOURS = 6
"""Kernels that are drawn near each target."""
LARGE = 1e6
"""Size of a medley below which its time is that of building it."""
REFERENCE = kernel_of_spec(
    KernelSpec("conv", "conv2d", ((1, 128, 28, 28),), (1, 128, 28, 28), 3), "reference"
)
"""Small enough to leave the caches to the others.

One over large maps made small kernels a tenth slower.
"""
Progress = Callable[[float, float, int], None]
"""Seconds spent, seconds allowed, kernels measured."""
Doubts = Callable[[Sequence[Sample]], Sequence[float]]
"""Relative error on each sample of a model that was fitted without it."""


@dataclass
class KernelSampler:
    """One core's samples while they grow."""

    meter: Meter
    rules: FusionRules
    prior: KernelPrior
    journal: ProfileJournal
    cluster: int
    samples: list[Sample]
    watch: ActivityWatch
    seed: int = 0
    targets: Sequence[Kernel] = ()
    """Kernels of networks that were named: measured first, with others near them."""
    clock: Callable[[], float] = perf_counter
    begun_s: float = 0.0
    allowed_s: float = float("inf")
    medley_s: list[float] = field(default_factory=list)
    """Seconds for each unit of the size of large medleys."""
    neighbours_drawn: int = 0
    """Of each target."""
    attempted: set[tuple[object, ...]] = field(default_factory=set)
    """What was measured or refused."""
    unmeasured_targets: int = 0
    """Targets for which there was no time."""
    references_us: list[float] = field(default_factory=list)
    disturbed: int = 0
    """Medleys that were measured again."""
    noise: NoiseTally = NO_NOISE
    """What others cost since the journal was written."""
    refused: dict[str, int] = field(default_factory=dict)
    """Kernels that the backend could not run, by kind and operator."""

    def run(self, allowed_s: float, most: int, doubts: Doubts, progress: Progress) -> None:
        """Measure for so many seconds, or until there are so many samples.

        A medley that was begun is finished; one that would not end in time is not begun.
        """
        self.begun_s = self.clock()
        self.allowed_s = allowed_s
        self.references_us = list(
            dict.fromkeys(s.reference_us for s in self.samples if s.reference_us > 0)
        )
        seen = {sample.kernel.key for sample in self.samples}
        wanted = [kernel for kernel in self.targets if kernel.key not in seen]
        in_time = self.measure_all(wanted, most, progress)
        self.unmeasured_targets = sum(kernel.key not in self.attempted for kernel in wanted)
        if not in_time:
            return
        fresh = generate_kernels(self.prior, self.rules, self.seed + len(self.samples))
        seen = {sample.kernel.key for sample in self.samples}
        fresh = (kernel for kernel in fresh if kernel.key not in seen)
        switch_s = self.elapsed_s + PRIOR_SHARE * (allowed_s - self.elapsed_s)
        while self.elapsed_s < allowed_s and len(self.samples) < most:
            started_s = self.clock()
            near = self.draw_neighbours(seen)
            if near:
                chosen = near
            elif self.elapsed_s < switch_s or not self.samples:
                chosen = list(islice(fresh, CHUNK))
            else:
                chosen = self.draw_adaptively(fresh, doubts)
            self.journal.spend(self.clock() - started_s)
            if not self.measure_all(chosen, most, progress):
                return

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since the run began."""
        return self.clock() - self.begun_s

    def measure_all(self, kernels: Sequence[Kernel], most: int, progress: Progress) -> bool:
        """Measure kernels in medleys; return False when time or number of samples is up.

        That is, too, where none of several medleys would end in time.
        """
        groups = kernel_groups(kernels)
        measured_medleys = 0
        for medley in groups:
            left_s = self.allowed_s - self.elapsed_s
            if left_s <= 0 or len(self.samples) >= most:
                return False
            size = sum(map(kernel_size, medley))
            if size * self.usual_s() > left_s:
                continue  # a smaller one may still fit
            started_s = self.clock()
            measured = self.measure_kernels(medley)
            taken_s = self.clock() - started_s
            measured_medleys += 1
            if size > LARGE:
                self.medley_s.append(taken_s / size)
            self.samples += measured
            self.journal.append(self.cluster, measured, taken_s, self.noise)
            self.noise = NO_NOISE
            progress(self.elapsed_s, self.allowed_s, len(self.samples))
        return measured_medleys > 0 or not groups

    def usual_s(self) -> float:
        """Return the seconds for each unit of a medley's size, at the median of the latest."""
        return float(np.median(self.medley_s[-20:])) if self.medley_s else 0.0

    def draw_neighbours(self, seen: set[tuple[object, ...]]) -> list[Kernel]:
        """Draw kernels near the targets, each target as often as any other, up to `NEIGHBOURS`."""
        chosen: dict[tuple[object, ...], Kernel] = {}
        rng = random.Random(len(self.samples))
        while self.neighbours_drawn < NEIGHBOURS and len(chosen) < CHUNK:
            self.neighbours_drawn += 1
            for target in self.targets:
                name = f"like.{target.name}.{self.neighbours_drawn}"
                kernel = perturb_kernel(target, self.rules, rng, name)
                if kernel is not None and kernel.key not in seen:
                    chosen.setdefault(kernel.key, kernel)
        seen.update(chosen)
        return list(chosen.values())

    def draw_adaptively(self, fresh: Iterator[Kernel], doubts: Doubts) -> list[Kernel]:
        """Draw half near the kernels that are off by more than a tenth, the worse the likelier.

        Half new.
        """
        wrong = np.abs(np.asarray(doubts(self.samples)))
        rng = random.Random(len(self.samples))
        bad = np.flatnonzero(wrong > BAD)
        chosen: dict[tuple[object, ...], Kernel] = {}
        for index in (
            rng.choices(bad.tolist(), np.minimum(wrong[bad], 1.0).tolist(), k=CHUNK)
            if len(bad)
            else ()
        ):
            kernel = perturb_kernel(
                self.samples[index].kernel,
                self.rules,
                rng,
                f"near{len(self.samples)}.{len(chosen)}",
            )
            if kernel is not None and len(chosen) < CHUNK // 2:
                chosen.setdefault(kernel.key, kernel)
        return [*chosen.values(), *islice(fresh, CHUNK - len(chosen))]

    def measure_kernels(self, medley: Sequence[Kernel]) -> list[Sample]:
        """Measure kernels, again where they were disturbed; return those that can be believed."""
        attempts = self.attempts_at([(REFERENCE,), *((kernel,) for kernel in medley)])
        merged = merge_attempts(attempts)
        _, *rounds = steady_rounds(merged)
        reference_us = merged.reference_us
        refused: list[Kernel] = []
        kept: list[Sample] = []
        doubted: list[Sample] = []
        for kernel, row in zip(medley, rounds, strict=True):
            sample = Sample(kernel, row.times_us, reference_us)
            if not row.times_us:
                refused.append(kernel)
            elif row.steady:
                kept.append(sample)
            else:
                doubted.append(sample)
        self.refuse(refused)
        self.attempted.update(kernel.key for kernel in medley)
        self.attempted.difference_update(sample.kernel.key for sample in doubted)
        self.noise += NoiseTally(
            medleys=1,
            slow_medleys=float(reference_us > self.tolerated_us()),
            kept_us=sum(sample.latency_us for sample in kept),
            doubted_us=sum(sample.latency_us for sample in doubted),
            doubted=len(doubted),
        )
        return kept

    def attempts_at(self, chains: list[tuple[Kernel, ...]]) -> list[Attempt]:
        """Measure chains, and again up to `RETRIES` times while others disturb."""
        attempts: list[Attempt] = []
        for repeat in range(1 + RETRIES):
            if repeat and self.elapsed_s >= self.allowed_s:
                break
            attempt = self.watch.attempt(lambda: self.measure_undisturbed(chains))
            seen = attempt.interference
            self.noise += NoiseTally(
                measured_s=seen.wall_s,
                waited_s=seen.waited_s,
                repeated_s=seen.wall_s if repeat else 0.0,
                beside_s=seen.beside_s,
            )
            attempts.append(attempt)
            self.references_us.append(attempt.reference_us)
            slow = merge_attempts(attempts).reference_us > self.tolerated_us()
            if may_stop(attempts, 1 + RETRIES) and not slow:
                break
            self.disturbed += repeat == 0
            if repeat < RETRIES:
                self.noise += NoiseTally(paused_s=self.watch.wait_for_quiet())
        return attempts

    def tolerated_us(self) -> float:
        """Return what the reference may take, by the median of the latest."""
        return TOLERATED * float(np.median(self.references_us[-200:]))

    def refuse(self, kernels: Sequence[Kernel]) -> None:
        """Count kernels that the backend could not run."""
        for kernel in kernels:
            label = f"{kernel.kind} {kernel.op}".strip()
            self.refused[label] = self.refused.get(label, 0) + 1

    def measure_undisturbed(self, chains: list[tuple[Kernel, ...]]) -> list[tuple[float, ...]]:
        """Measure chains with the garbage collector off."""
        with PausedCollector():
            return self.meter.measure(chains, ROUNDS)
