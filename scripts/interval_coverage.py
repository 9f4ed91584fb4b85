"""How often the 90% intervals of a profile hold kernels it was not fitted on.

    python scripts/interval_coverage.py FOLDER [FOLDER ...]

Each FOLDER is what `nnstretch profile --out` wrote. Its samples are split at random (fixed seed):
fitted on three quarters, asked for the rest. Wanted are 85-95%.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from nnstretch.profile.fit_predictor import fit
from nnstretch.profile.sampling.journal import NAME, open_journal
from nnstretch.profile.sampling.sample import Sample, normalize_disturbed


def split(samples: list[Sample]) -> tuple[list[Sample], list[Sample]]:
    order = np.random.default_rng(0).permutation(len(samples))
    quarter = len(samples) // 4
    return [samples[i] for i in order[quarter:]], [samples[i] for i in order[:quarter]]


def row(folder: Path) -> str:
    head = json.loads((folder / NAME).read_text(encoding="utf-8").partition("\n")[0])
    head.pop("format")
    _, found = open_journal(folder, head)
    fitted, held = split(normalize_disturbed(next(iter(found.values()))))
    learned = fit(fitted, "cpu", head["dtype"])
    known = [sample for sample in held if learned.covers(sample.kernel)]
    estimates = learned.estimate_many([sample.kernel for sample in known])
    measured = np.array([sample.latency_us for sample in known])
    inside = (estimates.low_us <= measured) & (measured <= estimates.high_us)
    off = np.abs(estimates.latency_us / measured - 1)
    weighted = abs(float(estimates.latency_us.sum() / measured.sum()) - 1)
    return (
        f"| {head['backend']} {head['dtype']} | {len(fitted)} | {len(known)} | {inside.mean():.1%}"
        f" | {np.median(off):.1%} | {off.mean():.1%} | {weighted:.1%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    print(
        "| profile | fitted on | asked for | inside the 90% interval | median error | mean error |"
        " error of their sum |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for folder in args.folders:
        print(row(folder), flush=True)


if __name__ == "__main__":
    main()
