"""Networks as C++: what is translated and right, on which boards, how fast, how well two cores share.

python scripts/cpp_networks table --journal cpp_networks.jsonl --out docs/results/cpp_networks.md
python scripts/cpp_networks boards --out docs/results/cpp_boards.md
python scripts/cpp_networks speed --out docs/results/cpp_speed.md
python scripts/cpp_networks tail --out docs/results/cpp_tail.md
python scripts/cpp_networks tail --emulated --out docs/results/cpp_tail_emulated.md
python scripts/cpp_networks granularity --out docs/results/cpp_granularity.md
python scripts/cpp_networks picture --out docs/results/cpp_two_networks.svg
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

import boards
import granularity
import picture
import speed
import table
import tail

from nnstretch.bench.commands import parser_of_parts, run_part


def arguments() -> ArgumentParser:
    """Return the parser of this command."""
    alone = {"table": table, "boards": boards, "speed": speed, "granularity": granularity}
    together = {"tail": tail, "picture": picture}
    return parser_of_parts(__doc__, alone | together)


if __name__ == "__main__":
    sys.exit(run_part(arguments()))
