"""The exact search measured: its time and memory, and what samplers reach beside it.

python scripts/search growth --out docs/results/search.md --picture docs/results/search_growth.svg
python scripts/search anytime --out docs/results/search_anytime.md
OMP_NUM_THREADS=1 python scripts/search samplers --out docs/results/samplers.md
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

import anytime
import sampler_gaps
import search_growth

from nnstretch.bench.commands import parser_of_parts, run_part


def arguments() -> ArgumentParser:
    return parser_of_parts(
        __doc__, {"growth": search_growth, "anytime": anytime, "samplers": sampler_gaps}
    )


if __name__ == "__main__":
    sys.exit(run_part(arguments()))
