"""Soak tests: thousands of requests, of items of a pipeline, or over HTTP, of which none may be lost.

python scripts/soak requests --out docs/results/soak.md
python scripts/soak pipeline --out docs/results/pipeline_soak.md
python scripts/soak serve --out docs/results/serve_soak.md
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

import pipeline_soak
import request_soak
import serve_soak

from nnstretch.bench.commands import parser_of_parts, run_part


def arguments() -> ArgumentParser:
    return parser_of_parts(
        __doc__, {"requests": request_soak, "pipeline": pipeline_soak, "serve": serve_soak}
    )


if __name__ == "__main__":
    sys.exit(run_part(arguments()))
