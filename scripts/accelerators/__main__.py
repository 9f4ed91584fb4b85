"""Schedules inside accelerators against what is exact, against time, and against other programs.

python scripts/accelerators published --out docs/results/accelerator_published.md
python scripts/accelerators optimum --rows rows.jsonl --out docs/results/accelerator_optimum.md
python scripts/accelerators bounds --out docs/results/accelerator_bounds.md
python scripts/accelerators executed --out docs/results/accelerator_executed.md
python scripts/accelerators growth --out docs/results/accelerator_speed.md --picture FILE.svg
python scripts/accelerators programs --envs FOLDER --out docs/results/accelerator_programs.md
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

import bound_distances
import carried_out
import growth
import optimum_gaps
import programs
import published_figures

from nnstretch.bench.commands import parser_of_parts, run_part


def arguments() -> ArgumentParser:
    return parser_of_parts(
        __doc__,
        {
            "published": published_figures,
            "optimum": optimum_gaps,
            "bounds": bound_distances,
            "executed": carried_out,
            "growth": growth,
            "programs": programs,
        },
    )


if __name__ == "__main__":
    sys.exit(run_part(arguments()))
