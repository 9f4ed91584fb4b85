"""Arguments that several verbs share: MODEL, SOC, shapes, names, limits and recipe keys."""

from __future__ import annotations

import argparse
import math
from typing import Any

from nnstretch.errors import BadInput

MODEL_HELP = (
    "torchvision:NAME, timm:NAME, FILE.py:FACTORY (each may end in ?key=value&...), FILE.pt2,"
    " FILE.onnx, or a plan FILE.yaml"
)
CALIBRATION_IMAGES = 64
SOC_HELP = "a chip: a name under latency_predictors/ (mi9) or a folder of that form"


def shape_of(text: str) -> tuple[int, ...]:
    """Parse `1,3,224,224`. Raises ArgumentTypeError when the text is no shape."""
    try:
        shape = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape, write 1,3,224,224") from None
    if not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape, every size must be at least 1")
    return shape


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
    try:
        value = float(text[:-1]) * original if text.endswith("x") else float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise BadInput(
            f"{option} is {text!r}, command line, write a number or a ratio such as 0.885x"
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
