"""CEDR's experiments once more, in simulation.

python scripts/cedr describe --out examples/cedr
python scripts/cedr experiments --out docs/results/cedr.md
python scripts/cedr interruptions --out docs/results/sweep_interruptions.md
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

import describe
import experiments
import interruptions

from nnstretch.bench.commands import parser_of_parts, run_part

PARTS = {"describe": describe, "experiments": experiments, "interruptions": interruptions}


def arguments() -> ArgumentParser:
    return parser_of_parts(__doc__, PARTS)


if __name__ == "__main__":
    sys.exit(run_part(arguments()))
