"""Schedules inside accelerators against what is exact, against time, and against other programs.

python scripts/accelerators optimum --rows rows.jsonl --out docs/results/accelerator_optimum.md
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

import optimum_gaps

from nnstretch.bench.commands import parser_of_parts, run_part


def arguments() -> ArgumentParser:
    return parser_of_parts(__doc__, {"optimum": optimum_gaps})


if __name__ == "__main__":
    sys.exit(run_part(arguments()))
