"""The card beside a calibrated chip: who measured what, what is fitted, and how far off it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from calibrate_mi9 import Evidence

HEAD = """# mi9

Xiaomi Mi 9 (Snapdragon 855: 4 CPU threads, Adreno 640, Hexagon 690), int8, batch 1, 224 px. The phone is inferred from
the public material, which does not name it.

## Measured, by the authors of NN-Stretch (MobiSys 2023, public repository)

- 24 whole networks: minimum of 50 runs after 5 warm-ups, random weights, TFLite 2.8, no repeats, no spread (`latency_mi9.csv`).
- 26 single GPU kernels of R-34-DG (the mean of two runs) and the waits around its four meeting points, from a profiling build
  (`kernels_r34dg.csv`).
- Nothing was measured by this project: no phone was at hand.

## Read off the waits of R-34-DG

A straight line over the KiB moved: copy to the GPU, copy back, merge. Profiling slows a run, so they may be high.

## Fitted

{count} parameters, one bounded least-squares fit of log ratios over all rows. EN-L4-CD counts 0.3: it was measured before a repair of its
builder, so stages 1 and 7 may be missing from the measured graph, and a prediction above the measurement is expected (see below).
Queue depths are a choice, not a measurement. GPU beside DSP has no published row: its contention is 1, and for all three
processors the worst pair counts.
The left-out errors below are not an untouched test: they were looked at while the form, the pull, the starts and the bounds were chosen.
Twelve prototypes (five forms: with and without im2col, element-wise and per-group terms; four pulls, two kernel weights) ranged over
6.2-8.7% (one processor) and 11.9-24.0% (branched), with R-34's kernels kept when R-34 was left out. Nine variants of the final form
ranged over 6.3-8.3% and 14.8-16.3%; the one shipped is the lowest of the nine on both. Starts for bandwidths came from an
earlier fit of the same rows. Expect a network of another kind to be further off.
The operator lists name no activation, so SiLU costs what ReLU costs; squeeze-and-excitation was never measured.

"""


def card(
    values: Mapping[str, float],
    evidence: Evidence,
    fitted: Mapping[str, float],
    held: Mapping[str, float],
    kernels: np.ndarray,
    shortened: float,
) -> tuple[str, str]:
    """The card, and its one-sentence summary."""
    single, branched = groups(held)
    left_out = f"{mean(held, single):.1%} (one processor) and {mean(held, branched):.1%} (branched)"
    errors = f"{mean(fitted, held):.1%} fitted on all rows, with a network left out {left_out}"
    parts = [
        HEAD.replace("{count}", str(len(values))),
        table("parameter | value", (f"{name} | {value:g}" for name, value in values.items())),
        table("crossing | fixed us | us per KiB", crossings(evidence)),
        f"## Error\n\nMean absolute: {errors}.\n"
        f"Fitted, one processor {mean(fitted, single):.1%}, branched {mean(fitted, branched):.1%}; "
        f"without EN-L4-CD {mean(fitted, without(branched)):.1%} fitted, {mean(held, without(branched)):.1%} left out.\n"
        f"EN-L4-CD priced without its stages 1 and 7: {shortened:+.1%} (fitted).\n",
        table(
            "network | measured us | error, fitted | error, left out",
            (f"{c} | {evidence.measured_us[c]:.0f} | {fitted[c]:+.1%} | {held[c]:+.1%}" for c in held),
        ),
        kernel_errors(evidence, kernels),
        "Left out means: fitted without any row of that network (R-34 also without its kernels); the waits were kept.\n"
        "The error of an estimate is the root mean square of the left-out errors of its processor's own rows.\n\n"
        "Written by `python scripts/calibrate_mi9.py`.\n",
    ]
    return "\n".join(parts), f"public NN-Stretch measurements (Mi 9, int8, 224 px, minimum of 50 runs); mean error {errors}"


def groups(held: Mapping[str, float]) -> tuple[list[str], list[str]]:
    single = [config for config in held if len(config.rsplit("-", 1)[1]) == 1]
    return single, [config for config in held if config not in single]


def without(configs: list[str]) -> list[str]:
    return [config for config in configs if config != "EN-L4-CD"]


def mean(errors: Mapping[str, float], configs: Mapping[str, float] | list[str]) -> float:
    return float(np.mean([abs(errors[config]) for config in configs]))


def crossings(evidence: Evidence) -> list[str]:
    across = evidence.crossing
    named = (("to the GPU", across.gpu_in), ("from the GPU", across.gpu_out), ("merge", across.merge))
    return [f"{name} | {link.fixed_us:g} | {link.us_per_kib:g}" for name, link in named]


def kernel_errors(evidence: Evidence, kernels: np.ndarray) -> str:
    each = kernels / evidence.kernel_us - 1
    stages = sorted(set(evidence.stage.tolist()))
    totals = [(kernels[evidence.stage == s].sum(), evidence.kernel_us[evidence.stage == s].sum()) for s in stages]
    body = (f"s{s} | {measured:.0f} | {predicted / measured - 1:+.1%}" for s, (predicted, measured) in zip(stages, totals, strict=True))
    head = f"GPU kernels of R-34-DG, fitted: mean {np.abs(each).mean():.1%}, worst {np.abs(each).max():.1%}; by stage:\n\n"
    return head + table("stage | measured us | error", body)


def table(header: str, body: object) -> str:
    rule = " | ".join("---" for _ in header.split("|"))
    return "\n".join(f"| {row} |" for row in (header, rule, *body)) + "\n"  # type: ignore[misc]
