"""Arguments that several verbs share: MODEL, SOC, shapes, names, limits and recipe keys."""

from __future__ import annotations

import argparse
import math
from typing import Any

from nnstretch.cli.parser import NUMBER
from nnstretch.errors import BadInput
from nnstretch.files.input_shapes import parse_input_shapes
from nnstretch.graph import InputShape

MODEL_HELP = (
    "torchvision:NAME, timm:NAME, FILE.py:FACTORY (each may end in ?key=value&...), FILE.pt2,"
    " FILE.onnx, or a plan FILE.yaml; a network may end in #OUTPUT,... to have only those"
)
CALIBRATION_IMAGES = 64
SOC_HELP = "a chip: a name under latency_predictors/ (mi9) or a folder of that form"


def inputs_of(text: str) -> tuple[InputShape, ...]:
    """Parse `1,3,320,320`, or `x=1,3,320,320;ids=1,128:int64`. Raises ArgumentTypeError."""
    try:
        return parse_input_shapes(text)
    except BadInput as error:
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
            " closes what an ONNX file leaves open; of several inputs by name,"
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
        raise argparse.ArgumentTypeError("name at least one processor, as in cpu,dsp")
    return names


def quantity(text: str | None, original: float, option: str, otherwise: float) -> float:
    """Parse a limit: `1.6e9` is absolute, `0.885x` a share of the original's. Raises BadInput."""
    if text is None:
        return otherwise
    number = text.removesuffix("x")
    value = float(number) if NUMBER.fullmatch(number) else math.nan
    value *= original if number != text else 1
    if not 0 <= value < math.inf:
        raise BadInput(
            f"{option} is {text!r:.80}, command line, write a number or a ratio such as 0.885x"
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
        default=None,
        help=(
            "price kernels that were never measured as the nearest kind that was (default: refuse"
            " them)"
        ),
    )
