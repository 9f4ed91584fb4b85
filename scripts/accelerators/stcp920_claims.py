"""What is judged of STCP920: rates, steps, matrix use, BERT of 16 sentences, maps in DDR."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from judged import JudgedClaim, between
from modelled_cases import MODELS, SHOWN, modelled
from stcp920_tables import MEASURED_USE, Published, bert_per_s, use_and_fill

from nnstretch.accelerate.policies import ClusterSchedule
from nnstretch.chip.instances import DDR

JUDGED = ("A", "B", "D")
"""J's width, frames and heads were not published."""
RATES = ("ddr", "graphturbo")
STEPS = (("ordered", "lb"), ("graphturbo", "ordered"))
MOST_RATE, MOST_STEP, MOST_POINTS = 2.0, 1.5, 15.0


def stcp_claims(rows: Sequence[Published]) -> list[JudgedClaim]:
    """Return all that is judged of the machine."""
    judged = [row for row in rows if row.label in JUDGED]
    return [
        *rate_claims(judged),
        *step_claims(judged),
        *use_claims(),
        sentence_claim(),
        *(maps_claim(row) for row in rows),
    ]


def rate_of(row: Published, policy: str) -> float:
    """Return the modelled rate of a row with the published images per cluster."""
    images = row.images[policy]
    return modelled(MODELS[row.label], "stcp920", policy, row.batch, images).throughput_per_s


def rate_claims(rows: Sequence[Published]) -> list[JudgedClaim]:
    """Return the first and the last policy over the published rates."""
    claims: list[JudgedClaim] = []
    for row in rows:
        for policy in RATES:
            claim = f"{row.label} {SHOWN[row.label]}, `{policy}` over the published rate"
            ratio = rate_of(row, policy) / row.rate[policy]
            claims.append(between(claim, ratio, 1 / MOST_RATE, MOST_RATE))
    return claims


def step_claims(rows: Sequence[Published]) -> list[JudgedClaim]:
    """Return ratios of two policies over the published ratios."""
    claims: list[JudgedClaim] = []
    for after, before in STEPS:
        for row in rows:
            ours = rate_of(row, after) / rate_of(row, before)
            theirs = row.rate[after] / row.rate[before]
            claim = f"{row.label}, `{after}` over `{before}`, over the published ratio"
            claims.append(between(claim, ours / theirs, 1 / MOST_STEP, MOST_STEP))
    return claims


def use_claims() -> list[JudgedClaim]:
    """Return whether matrix use of ResNet-50 never falls, and how far it is from the published."""
    uses: list[float] = []
    for images in MEASURED_USE:
        result = modelled(MODELS["A"], "stcp920", "graphturbo", 4 * images, images)
        uses.append(use_and_fill(result)[0])
    pairs = zip(uses, MEASURED_USE.values(), strict=True)
    apart = statistics.fmean(abs(use - published) for use, published in pairs)
    never_falls = all(before <= after for before, after in pairwise(uses))
    shown = " ".join(f"{use:.1f}" for use in uses)
    name = "ResNet-50, matrix use with 1, 2, 4, 8, 16 images a cluster, %"
    return [
        JudgedClaim(name, shown, "never falls", never_falls),
        between("... mean difference from the published, points", apart, 0, MOST_POINTS, 1),
    ]


def sentence_claim() -> JudgedClaim:
    """Return whether BERT-128 is no faster with 16 sentences a cluster than with 8."""
    of_8, of_16 = bert_per_s(8), bert_per_s(16)
    name = "BERT-128, sentences a second with 16 a cluster over 8"
    return JudgedClaim(name, f"{of_16 / of_8:.3f}", "at most 1", of_16 <= of_8 * (1 + 1e-9))


def maps_claim(row: Published) -> JudgedClaim:
    """Return whether maps in DDR are input, output and named spills alone."""
    images = row.images["graphturbo"]
    result = modelled(MODELS[row.label], "stcp920", "graphturbo", row.batch, images)
    others = maps_in_ddr(result.schedule) - spilled_maps(result.schedule)
    name = f"{row.label}, maps in DDR that are no input, output or named spill"
    return JudgedClaim(name, str(len(others)), "none", not others)


def maps_in_ddr(schedule: ClusterSchedule) -> set[str]:
    """Return storages in DDR that are neither inputs nor outputs of the network."""
    program = schedule.placed.program
    ends = {value.name for value in program.chip.graph.inputs} | set(program.chip.outputs)
    in_ddr = {name: s.tensor for name, s in program.storages.items() if s.scope == DDR}
    return {name.removesuffix(" out") for name, tensor in in_ddr.items() if tensor not in ends}


def spilled_maps(schedule: ClusterSchedule) -> set[str]:
    """Return what went to DDR because a buffer overflowed."""
    return {spill.tensor for spill in schedule.placed.spills if spill.target == DDR}
