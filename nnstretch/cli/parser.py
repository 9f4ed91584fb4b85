"""The parser of a verb's arguments: one short line for what it refuses, and numbers in plain
decimals.
"""

from __future__ import annotations

import argparse
import re
from math import isfinite
from typing import NoReturn

from nnstretch.errors import closest, one_line, shorten_message

WHOLE = re.compile(r"[-+]?[0-9]{1,18}")
NUMBER = re.compile(r"[-+]?([0-9]{1,60}\.?[0-9]{0,60}|\.[0-9]{1,60})([eE][-+]?[0-9]{1,4})?")
UNKNOWN = re.compile(r"unrecognized arguments: (-[^ =]+)")


class VerbParser(argparse.ArgumentParser):
    """Parser whose refusals are short and name options that are close to an unknown one."""

    def error(self, message: str) -> NoReturn:
        """Print usage and what is wrong, and exit with status 2."""
        near = ""
        if unknown := UNKNOWN.match(message):
            near = closest(unknown[1], list(self._option_string_actions))
        super().error(shorten_message(one_line(message)) + near)


def whole_number(text: str) -> int:
    """Parse a whole number in plain decimals. Raises ArgumentTypeError for anything else."""
    if not WHOLE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r:.80} is no whole number in plain decimals")
    return int(text)


def finite_number(text: str) -> float:
    """Parse a number that is finite. Raises ArgumentTypeError for anything else."""
    if not NUMBER.fullmatch(text) or not isfinite(float(text)):
        raise argparse.ArgumentTypeError(
            f"{text!r:.80} is no number, write a finite one in plain decimals"
        )
    return float(text)
