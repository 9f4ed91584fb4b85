"""How often the 90% intervals of a profile hold kernels it was not fitted on.

Each FOLDER is what `nnstretch profile --out` wrote. Its samples are split at random (fixed seed):
fitted on three quarters, asked for the rest. Wanted are 85-95%.
"""

from __future__ import annotations

import argparse
from itertools import chain
from pathlib import Path

import numpy as np

from nnstretch.bench.markdown import markdown_table
from nnstretch.profile.fitting.fit_predictor import fit
from nnstretch.profile.sampling.journal import NAME, read_medleys
from nnstretch.profile.sampling.sample import Sample, normalize_disturbed


def split(samples: list[Sample]) -> tuple[list[Sample], list[Sample]]:
    order = np.random.default_rng(0).permutation(len(samples))
    quarter = len(samples) // 4
    return [samples[i] for i in order[quarter:]], [samples[i] for i in order[:quarter]]


def cells(folder: Path) -> list[str]:
    head, medleys = read_medleys(folder / NAME)
    of_cluster = [medley.samples for medley in medleys if medley.cluster == medleys[0].cluster]
    fitted, asked = split(normalize_disturbed(list(chain.from_iterable(of_cluster))))
    learned = fit(fitted, "cpu", head.dtype)
    known = [sample for sample in asked if learned.covers(sample.kernel)]
    estimates = learned.estimate_many([sample.kernel for sample in known])
    measured = np.array([sample.latency_us for sample in known])
    inside = (estimates.low_us <= measured) & (measured <= estimates.high_us)
    off = np.abs(estimates.latency_us / measured - 1)
    weighted = abs(float(estimates.latency_us.sum() / measured.sum()) - 1)
    shares = (inside.mean(), np.median(off), off.mean(), weighted)
    counts = (str(len(fitted)), str(len(known)))
    return [f"{head.backend} {head.dtype}", *counts, *(f"{share:.1%}" for share in shares)]


HEADS = (
    *("profile", "fitted on", "asked for", "inside the 90% interval"),
    *("median error", "mean error", "error of their sum"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")


def run(args: argparse.Namespace) -> int:
    print(*markdown_table(HEADS, map(cells, args.folders)), sep="\n")
    return 0
