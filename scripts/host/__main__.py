"""Measurements on this machine: searched plans, published branches, pipelines, CUDA streams.

python scripts/host plans --out docs/results/bench_host.md --soc latency_predictors/host
python scripts/host overlap --out docs/results/overlap.md --config R-50-CG
python scripts/host pipelines --out docs/results/bench_pipeline.md --soc latency_predictors/host
python scripts/host cuda --out docs/results/bench_cuda.md
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

import branch_overlap
import cuda_streams
import searched_plans
import split_pipelines

from nnstretch.bench.commands import parser_of_parts, run_part


def arguments() -> ArgumentParser:
    return parser_of_parts(
        __doc__,
        {
            "plans": searched_plans,
            "overlap": branch_overlap,
            "pipelines": split_pipelines,
            "cuda": cuda_streams,
        },
    )


if __name__ == "__main__":
    sys.exit(run_part(arguments()))
