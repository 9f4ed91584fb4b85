"""Chips that are shipped: `mi9` from published measurements, two phones derived from it.

python scripts/calibration mi9 --out latency_predictors/mi9
python scripts/calibration derived --out latency_predictors
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

import derived_socs
import mi9_fit

from nnstretch.bench.commands import parser_of_parts, run_part


def arguments() -> ArgumentParser:
    return parser_of_parts(__doc__, {"mi9": mi9_fit, "derived": derived_socs})


if __name__ == "__main__":
    sys.exit(run_part(arguments()))
