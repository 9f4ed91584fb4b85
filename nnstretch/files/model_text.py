"""A MODEL as text, and the inputs of its network.

A MODEL is `SOURCE?key=value&...#OUTPUT,...`; inputs are `1,3,320,320`, or
`x=1,3,320,320;ids=1,128:int64`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from urllib.parse import parse_qsl, quote

from nnstretch.errors import BadInput
from nnstretch.graph import ELEMENT_BYTES, InputShape

LARGEST_SIZE = 1 << 40
OPEN_SIZES = frozenset({"-1", "?", "*", "none", "n", "b", "batch"})
"""What other tools call a size that is known only when a network runs."""
SHOWN = 80
"""Characters of a wrong text that a message repeats."""
QUERY_SAFE = "=,;:./-"
NETWORK = re.compile(r"^(torchvision|timm):|\.py:|\.(onnx|pt2)(?=[?#])")
"""What a SOURCE begins with, holds or ends in, where something may stand behind it."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A MODEL taken apart."""

    source: str
    query: tuple[tuple[str, str], ...] = ()
    outputs: tuple[str, ...] = ()
    """Outputs that count, by name or position; empty for all."""

    def __str__(self) -> str:
        query = "&".join(f"{quote(key)}={quote(value, QUERY_SAFE)}" for key, value in self.query)
        outputs = ",".join(self.outputs)
        return f"{self.source}{f'?{query}' if query else ''}{f'#{outputs}' if outputs else ''}"


def parse_model_spec(spec: str) -> ModelSpec:
    """Take a MODEL apart.

    Outputs stand behind the first `#` before which a network is named: one in a folder's name is
    none, and names of outputs hold what they like.
    """
    named = NETWORK.search(spec)
    sign = spec.find("#", named.end()) if named else -1
    network, chosen = (spec[:sign], spec[sign + 1 :]) if sign >= 0 else (spec, "")
    source, _, query = network.partition("?")
    outputs = tuple(name.strip() for name in chosen.split(",") if name.strip())
    return ModelSpec(source, tuple(parse_qsl(query, keep_blank_values=True)), outputs)


def parse_input_shapes(text: str) -> tuple[InputShape, ...]:
    """Parse inputs separated by semicolons. Raises BadInput when one is no shape."""
    parts = [part.strip() for part in text.split(";")]
    inputs = tuple(parse_input_shape(part) for part in parts if part)
    if not inputs:
        raise BadInput(f"input {text!r:.{SHOWN}} names no input, write 1,3,224,224")
    check_unique(inputs)
    return inputs


def parse_input_shape(text: str) -> InputShape:
    """Parse one `[NAME=]SHAPE[:DTYPE]`; `x` may separate sizes. Raises BadInput."""
    name, equals, described = text.rpartition("=")
    sizes, colon, dtype = (part.strip() for part in described.partition(":"))
    if (equals and not name.strip()) or (colon and dtype not in ELEMENT_BYTES):
        raise BadInput(
            f"{text!r:.{SHOWN}} is no input, write [NAME=]SHAPE[:DTYPE], DTYPE one of"
            f" {', '.join(ELEMENT_BYTES)}"
        )
    return InputShape(parse_sizes(sizes), name.strip(), dtype)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Parse `1,3,224,224`, or `()` for a scalar. Raises BadInput when the text is no shape."""
    if text == "()":
        return ()
    sizes = sizes_of(text)
    if any(size in OPEN_SIZES for size in sizes):
        raise BadInput(
            f"{text!r:.{SHOWN}} leaves a size open, no format has dynamic shapes, write 1,3,224,224"
        )
    if not all(size.isascii() and size.isdecimal() for size in sizes):
        raise BadInput(f"{text!r:.{SHOWN}} is no shape, write 1,3,224,224")
    if max(map(len, sizes)) > len(str(LARGEST_SIZE)):
        raise BadInput(f"{text!r:.{SHOWN}} is no shape, sizes end at {LARGEST_SIZE - 1}")
    shape = tuple(map(int, sizes))
    if not all(1 <= size < LARGEST_SIZE for size in shape):
        raise BadInput(
            f"{text!r:.{SHOWN}} is no shape, every size must be at least 1 and below {LARGEST_SIZE}"
        )
    return shape


def sizes_of(text: str) -> list[str]:
    """Return the parts of a shape."""
    return [size.strip().lower() for size in text.replace("x", ",").split(",")]


def leaves_size_open(text: str) -> bool:
    """Return whether one of several inputs has a size that is to be known only at run time."""
    described = [part.rpartition("=")[2].partition(":")[0] for part in text.split(";")]
    return any(size in OPEN_SIZES for size in chain.from_iterable(map(sizes_of, described)))


def check_unique(inputs: Sequence[InputShape]) -> None:
    """Check that no input is named twice. Raises BadInput."""
    names = [shape.name for shape in inputs if shape.name]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"input {name!r:.{SHOWN}} is given twice, name each once")


def format_input_shapes(inputs: Sequence[InputShape]) -> str:
    """Return inputs as the text that `parse_input_shapes` reads."""
    return ";".join(map(str, inputs))
