"""Emulated processors: a phone that waits like the profiled one, and pipelines on it.

python scripts/emulation r34dg --out docs/results/emulation.md --picture docs/results/emulation.svg
python scripts/emulation pipelines --out docs/results/pipeline_emulation.md
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

import emulated_pipelines
import r34dg

from nnstretch.bench.commands import parser_of_parts, run_part


def arguments() -> ArgumentParser:
    return parser_of_parts(__doc__, {"r34dg": r34dg, "pipelines": emulated_pipelines})


if __name__ == "__main__":
    sys.exit(run_part(arguments()))
