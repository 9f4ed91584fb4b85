"""The parser of a verb, and arguments that several verbs share: MODEL, SOC, shapes, names, numbers,
limits and recipe keys.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any, NoReturn

from nnstretch.errors import BadInput, UnsupportedOp, closest, one_line, shorten_message
from nnstretch.files.model_text import leaves_size_open, parse_input_shapes
from nnstretch.graph import InputShape

MODEL_HELP = (
    "torchvision:NAME, timm:NAME, FILE.py:FACTORY (each may end in ?key=value&...), FILE.pt2,"
    " FILE.onnx, or a plan FILE.yaml; a network may end in #OUTPUT,... to keep only these outputs"
)
CALIBRATION_IMAGES = 64
SOC_HELP = "a chip: a name under latency_predictors/ (mi9) or a folder of that form"


WHOLE = re.compile(r"[-+]?[0-9]+", re.ASCII)
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", re.ASCII)
NOT_FINITE = re.compile(r"[-+]?(nan|inf|infinity)", re.I)
NEGATIVE = re.compile(r"-\d+$|-\d*\.\d+$|-\d+(,-?\d+)+$", re.ASCII)
"""What begins with a minus and is no option: a number, or a shape such as -1,3,224,224."""
MOST_DIGITS = 18
LEAST_COUNT = 1000
"""Of MACs or parameters that limit a network; what is below was meant as a ratio."""
UNKNOWN_OPTION = re.compile(r"unrecognized arguments: (-[^ =]+)")


class VerbParser(argparse.ArgumentParser):
    """Parser whose refusals are short and name options that are close to an unknown one.

    `type=int` and `type=float` are read in plain decimals, `whole_number` and `finite_number`;
    `type=Path` refuses an empty one, which Path would take for the current folder.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.register("type", int, whole_number)
        self.register("type", float, finite_number)
        self.register("type", Path, path_of)
        self._negative_number_matcher = NEGATIVE

    def error(self, message: str) -> NoReturn:
        """Print usage and what is wrong, and exit with status 2."""
        near = ""
        if unknown := UNKNOWN_OPTION.match(message):
            near = closest(unknown[1][:40], list(self._option_string_actions))
        super().error(shorten_message(one_line(message)) + near)

    def _get_value(self, action: argparse.Action, text: str) -> Any:
        try:
            return super()._get_value(action, text)  # type: ignore[misc]
        except BadInput as error:
            name = action.option_strings[0] if action.option_strings else str(action.dest)
            value = f"{text:.80}" or "empty"
            raise BadInput(f"{name} is {value}, command line, {error}") from None


def path_of(text: str) -> Path:
    """Parse a path. Raises BadInput for an empty one, as an unset variable of a shell leaves."""
    if not text:
        raise BadInput("needed is a path")
    return Path(text)


def whole_number(text: str) -> int:
    """Parse a whole number in plain decimals.

    Raises ArgumentTypeError for anything else, BadInput for one that counts nothing.
    """
    if not WHOLE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r:.80} is no whole number in plain decimals")
    if len(text) > MOST_DIGITS:
        raise BadInput(f"it has {len(text)} digits, needed are at most {MOST_DIGITS}")
    return int(text)


def seed_of(text: str) -> int:
    """Parse a whole number from 0. Raises as `whole_number`, BadInput for one below 0."""
    seed = whole_number(text)
    if seed < 0:
        raise BadInput("needed is 0 or more")
    return seed


def plain_number(text: str) -> float:
    """Parse a number in plain decimals, or nan or inf. Raises ArgumentTypeError for others."""
    if NOT_FINITE.fullmatch(text):
        return nan if text.lower().endswith("nan") else inf
    if not NUMBER.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r:.80} is no number in plain decimals")
    return float(text)


def finite_number(text: str) -> float:
    """Parse a finite number. Raises ArgumentTypeError for none, BadInput for nan and infinity."""
    number = plain_number(text)
    if not isfinite(number):
        raise BadInput("needed is a finite number")
    return number


def inputs_of(text: str) -> tuple[InputShape, ...]:
    """Parse `1,3,320,320`, or `x=1,3,320,320;ids=1,128:int64`.

    Raises ArgumentTypeError for what is no shape, BadInput for a dynamic one.
    """
    try:
        return parse_input_shapes(text)
    except BadInput as error:
        if leaves_size_open(text):
            raise
        raise argparse.ArgumentTypeError(str(error)) from None


def outputs_of(text: str) -> tuple[str, ...]:
    """Parse output names separated by commas. Raises ArgumentTypeError when there is none."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names or len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(f"{text!r:.80} must name each output once, as in out,aux")
    return names


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add --input and --outputs: what a network reads, and which of its results count."""
    parser.add_argument(
        "--input",
        type=inputs_of,
        action="extend",
        default=[],
        metavar="SHAPE",
        help=(
            "input shape, as 1,3,320,320 (default: the network's own, else 1,3,224,224); also"
            " sets what an ONNX file leaves open; of several inputs by name,"
            " 'x=1,3,320,320;ids=1,128:int64', or in order"
        ),
    )
    parser.add_argument(
        "--outputs",
        type=outputs_of,
        default=(),
        metavar="NAMES",
        help="only these outputs, by name or position, as in out,2; the same as MODEL#out,2",
    )


def names_of(text: str) -> tuple[str, ...]:
    """Parse names separated by commas. Raises ArgumentTypeError when there is none."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise argparse.ArgumentTypeError("it must have at least one name, as in cpu,dsp")
    return names


def quantity(text: str | None, original: float, option: str, otherwise: float) -> float:
    """Parse a limit: `1.6e9` is absolute, `0.885x` a share of the original's.

    Raises BadInput, also for an absolute one that can only be a ratio without its x.
    """
    if text is None:
        return otherwise
    number = text.removesuffix("x")
    value = float(number) if NUMBER.fullmatch(number) else nan
    value *= original if number != text else 1
    if not 0 <= value < inf:
        raise BadInput(
            f"{option} is {text!r:.80}, command line, write a number or a ratio such as 0.885x"
        )
    if number == text and 0 < value < LEAST_COUNT:
        raise BadInput(
            f"{option} is {text:.80}, command line, a count starts at {LEAST_COUNT}, write"
            f" {text:.80}x for a share of the original's"
        )
    return value


def recipe_overrides(args: argparse.Namespace) -> dict[str, Any]:
    """Return the recipe keys that were set on the command line."""
    settings = {key: value for key, value in vars(args).items() if key.startswith("set ")}
    return {k.removeprefix("set "): value for k, value in settings.items() if value is not None}


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the MODEL argument."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)


def add_fallback(parser: argparse.ArgumentParser) -> None:
    """Add --fallback."""
    from nnstretch.stretch.cost.cost_model import FALLBACKS

    parser.add_argument(
        "--fallback",
        choices=FALLBACKS,
        help=(
            "price kernels that were never measured as the nearest kind that was (default: refuse"
            " them)"
        ),
    )


@contextmanager
def naming_fallback(fallback: str | None) -> Iterator[None]:
    """Name --fallback where kernels that were never measured are refused without it.

    Raises UnsupportedOp in the place of that within.
    """
    try:
        yield
    except UnsupportedOp as refusal:
        if fallback is not None:
            raise
        raise UnsupportedOp(
            f"{refusal}; --fallback nearest prices it as the nearest kind"
        ) from refusal
