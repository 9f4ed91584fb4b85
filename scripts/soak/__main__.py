"""Soak tests: thousands of requests, or of items of a pipeline, of which none may be lost.

python scripts/soak requests --out docs/results/soak.md
python scripts/soak pipeline --out docs/results/pipeline_soak.md
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

import pipeline_soak
import request_soak

from nnstretch.bench.commands import parser_of_parts, run_part


def arguments() -> ArgumentParser:
    return parser_of_parts(__doc__, {"requests": request_soak, "pipeline": pipeline_soak})


if __name__ == "__main__":
    sys.exit(run_part(arguments()))
