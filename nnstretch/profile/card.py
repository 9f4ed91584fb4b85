"""CARD.md beside a profiled chip: what was measured, how, and how far off the predictor is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from nnstretch.kernel import FusionRules
from nnstretch.predict.learned import Learned
from nnstretch.profile.activity.noise_tally import NoiseTally, loss_line
from nnstretch.profile.backends.meter import Meter
from nnstretch.profile.budget import Budget
from nnstretch.profile.machine import Cluster, PinnedProcessor
from nnstretch.profile.sampling.kernel_sampler import KernelSampler
from nnstretch.profile.sampling.sample import Sample
from nnstretch.profile.validation import HeldOutNetwork, summary
from nnstretch.soc import Soc

MEASUREMENT = """\
Kernels over maps of one size take turns, so that their caches are as warm as in a network; the
latency of one is the mean of the faster half of its rounds. Every medley carries a reference
kernel. A medley in which it was slow was measured again, and what stayed slow was divided by how
slow, at most by 1.5.
"""
VALIDITY = """\
Measured numbers belong to this machine and this version of the runtime. Measure again after either
changed.
"""


@dataclass(frozen=True, slots=True)
class CardFacts:
    """Everything the card tells."""

    soc: Soc
    meter: Meter
    machine: str
    clusters: tuple[Cluster, ...]
    places: tuple[PinnedProcessor, ...]
    rules: FusionRules
    samples: Mapping[int, Sequence[Sample]]
    rows: Sequence[HeldOutNetwork]
    earlier_rows: frozenset[HeldOutNetwork]
    """Of them, those of runs before this one."""
    refused: Mapping[str, str]
    notes: Sequence[str]
    spent_s: float
    earlier_s: float
    """Of it, in runs before this one."""
    power_w: float | None
    """Mean power while kernels were measured; None where the platform does not tell."""
    budget: Budget
    noise: NoiseTally


def card(facts: CardFacts) -> str:
    """Return the text of CARD.md."""
    count = sum(map(len, facts.samples.values()))
    return "\n".join(
        [
            f"# {facts.soc.name}\n",
            (
                f"{facts.machine}, {facts.meter.version}, {facts.meter.dtype}, batch 1, one pinned"
                " thread."
            ),
            f"Measured by `nnstretch profile` on {date.today()}.\n",
            *([f"**Noisy: {facts.soc.noisy}.**\n"] if facts.soc.noisy else []),
            "## Measured\n",
            f"{count} kernels in {facts.spent_s:.0f} s"
            + (f", {facts.earlier_s:.0f} s of it in earlier runs" if facts.earlier_s else "")
            + ".",
            MEASUREMENT,
            "".join(f"- {note}\n" for note in facts.notes),
            f"{loss_line(facts.noise, facts.spent_s)}.\n",
            table("kind | kernels | from us | to us", by_kind(facts.samples)),
            table("processor | core | clock | hand over and back us", processors(facts)),
            (
                f"One call of a sub-graph costs {facts.meter.call_us:.1f} us beside its kernels;"
                " merging two branches"
            ),
            f"{facts.soc.merge.fixed_us:.1f} us and {facts.soc.merge.us_per_kib:.4f} us per KiB. "
            + contention_lines(facts.soc)
            + power(facts.power_w),
            "## Budget\n",
            budget_text(facts.budget),
            "## Fused\n",
            fusion(facts),
            "## Error\n",
            errors(facts),
            VALIDITY,
        ]
    )


def by_kind(samples: Mapping[int, Sequence[Sample]]) -> Iterable[str]:
    """Yield one row for each kind of kernel: how many, shortest and longest time."""
    times_by_kind: dict[str, list[float]] = {}
    for of_cluster in samples.values():
        for sample in of_cluster:
            times_by_kind.setdefault(sample.kernel.kind, []).append(sample.latency_us)
    most_first = sorted(times_by_kind.items(), key=lambda item: -len(item[1]))
    return (
        f"{kind} | {len(times)} | {min(times):.1f} | {max(times):.0f}" for kind, times in most_first
    )


def processors(facts: CardFacts) -> Iterable[str]:
    """Yield one line for each processor."""
    for place, processor in zip(facts.places, facts.soc.processors, strict=True):
        on_cpu = place.device == "cpu"
        khz = facts.clusters[place.cluster].max_khz if on_cpu else None
        clock = f"{khz / 1e6:.2f} GHz" if khz else "not told"
        yield (
            f"{place.name} | {place.core if on_cpu else place.device} | {clock} |"
            f" {processor.sync_us:.1f}"
        )


def contention_lines(soc: Soc) -> str:
    """Return the slowdown of processors that compute together."""
    if not soc.contention:
        return "Contention was not measured.\n"
    parts: list[str] = []
    for names, factor in soc.contention.items():
        parts.append(f"{' beside '.join(sorted(names))}: {factor:.3f}")
    return f"Slower while both compute: {', '.join(parts)}.\n"


def power(power_w: float | None) -> str:
    """Return the line about power."""
    return (
        f"Mean power while measuring: {power_w:.1f} W.\n"
        if power_w is not None
        else "Energy: this platform does not tell.\n"
    )


def budget_text(budget: Budget) -> str:
    """Return the plan of the budget, what was taken, and what there was no time for."""
    rows = (
        f"{phase} | {planned_s:.0f} | {budget.taken_s.get(phase, 0.0):.1f}"
        for phase, planned_s in budget.planned_s.items()
    )
    text = f"{budget.total_s:.0f} s for all of this run; what a phase leaves goes to the next.\n\n"
    text += table("phase | planned s | taken s", rows)
    if budget.skipped:
        text += "\nNo time was left for:\n\n"
        text += "".join(f"- {what}\n" for what in budget.skipped)
    return text


def fusion(facts: CardFacts) -> str:
    """Return which operators the backend fuses."""
    tested = (
        "found by the two-operator test, T1 + T2 - T12 > 0.5 min(T1, T2), or by counted launches"
    )
    tested += "; a batch norm behind a convolution is taken to fold into its weights"
    how = "read off converted files" if facts.meter.rules else tested
    by_kind: dict[str, list[str]] = {}
    for kind, op in sorted(facts.rules.pairs):
        by_kind.setdefault(kind, []).append(op)
    text = "Nothing joins a kernel: every operator is one of its own.\n"
    if by_kind:
        lines = (f"- {kind}: {', '.join(ops)}\n" for kind, ops in by_kind.items())
        text = f"What joins a kernel, {how}:\n\n{''.join(lines)}"
    if blocked := facts.rules.blocked:
        text += (
            f"\nFeature maps are kept in blocks of {blocked.block} channels; copies between layouts"
            " are kernels of their own.\n"
        )
    return text


def errors(facts: CardFacts) -> str:
    """Return the errors on kernels held out."""
    text = ""
    for name, predictor in facts.soc.predictors.items():
        error = getattr(predictor, "relative_error", 0.0)
        text += f"- {name}: {error:.1%} (rms, of the longer time) on left-out kernels.\n"
    if facts.rows:
        totals = summary(facts.rows)
        text += (
            f"- {network_count(facts.rows)} whole networks that were never sampled, predicted and"
            " measured in one run: "
        )
        text += (
            f"mean error {totals['mape']:.1%}, {totals['within_10_percent']:.0%} within 10%.\n\n"
        )
        text += table(
            "network | processor | kernels | predicted ms | measured ms | error | spread",
            map(row, facts.rows),
        )
        if before := len(facts.earlier_rows):
            text += f"\n{before} of them were predicted and measured by earlier runs.\n"
    text += "".join(f"\nNot told: {name}: {reason}\n" for name, reason in facts.refused.items())
    return text


def network_count(rows: Sequence[HeldOutNetwork]) -> int:
    """Return how many networks were measured, on one processor or on several."""
    return len({row.network for row in rows})


def row(network: HeldOutNetwork) -> str:
    """Return the row of a network held out."""
    return (
        f"{network.network} | {network.processor} | {network.kernels} |"
        f" {network.predicted_ms:.2f} | {network.measured_ms:.2f} | {network.error:+.1%} |"
        f" {network.spread:.1%}"
    )


def table(header: str, body: Iterable[str]) -> str:
    """Return a Markdown table."""
    rule = " | ".join("---" for _ in header.split("|"))
    return "\n".join(f"| {line} |" for line in (header, rule, *body)) + "\n"


def quality(where: str, sampler: KernelSampler) -> str:
    """Return how quiet the machine was, in one sentence."""
    spreads = [sample.spread for sample in sampler.samples]
    spread = f", median spread between the quartiles {np.median(spreads):.1%}" if spreads else ""
    text = f"{where}: {len(spreads)} kernels{spread}, {sampler.disturbed} medleys measured again"
    if sampler.refused:
        text += "; refused by the backend: " + ", ".join(
            f"{label} ({count})" for label, count in sorted(sampler.refused.items())
        )
    return text


def provenance(
    meter: Meter,
    machine: str,
    predictors: Mapping[str, Learned],
    rows: Sequence[HeldOutNetwork],
    kernels: int,
) -> str:
    """Return what was measured, by whom, and the held-out error, in one sentence."""
    error = next(iter(predictors.values())).relative_error
    where = measured_on(meter, machine)
    text = f"{where}, {kernels} kernels, left-out error {error:.1%} (rms)"
    if rows:
        facts = summary(rows)
        text += (
            f"; {network_count(rows)} whole networks never sampled: mean error {facts['mape']:.1%},"
            f" {facts['within_10_percent']:.0%} within 10%"
        )
    return text


def measured_on(meter: Meter, machine: str) -> str:
    """Return machine, runtime and element type of a profile, with which its provenance begins."""
    how = f"{machine}, {meter.version}, {meter.dtype}, one pinned thread"
    return f"measured on this machine ({how})"
