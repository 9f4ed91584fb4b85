"""The one decoder of foreign JSON: what it refuses, and that it says where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from nnstretch.files.decode import OneOf, Range, decode, parse_json


@dataclass(frozen=True, slots=True)
class Stage:
    width: Annotated[int, Range(1, 4096)]
    share: Annotated[float, Range(0, below=1)] = 0.0
    kind: Annotated[str, OneOf(("conv", "pool"))] = "conv"
    limit: Annotated[int, Range(1)] | None = None
    after: bool = False


@dataclass(frozen=True, slots=True)
class Net:
    stages: tuple[Stage, ...]
    times_us: dict[str, Annotated[float, Range(0)]]


def test_what_fits_is_decoded_with_defaults_and_nothing_converted_but_whole_numbers() -> None:
    value = {"stages": [{"width": 4096, "limit": 1}, {"width": 1}], "times_us": {"cpu": 3}}
    net = decode(Net, value, "net")
    assert net == Net((Stage(4096, limit=1), Stage(1)), {"cpu": 3.0})
    assert type(net.times_us["cpu"]) is float


REFUSED: dict[str, dict[str, Any]] = {
    "net.stages[0].width, 0 is out of range, needed is at least 1 and at most 4096": {"width": 0},
    "net.stages[0].width, 4097 is out of range": {"width": 4097},
    "net.stages[0].width, 'True' is bool, expected int": {"width": True},
    "net.stages[0].width, '1.0' is float, expected int": {"width": 1.0},
    "net.stages[0].share, 'False' is bool, expected float": {"share": False},
    "net.stages[0].share, nan is not finite": {"share": float("nan")},
    "net.stages[0].share, inf is not finite": {"share": float("inf")},
    "net.stages[0].share, 1.0 is out of range, needed is at least 0 and less than 1": {"share": 1},
    "net.stages[0].kind, unknown kind 'colour', it is one of conv, pool": {"kind": "colour"},
    "net.stages[0].limit, 0 is out of range": {"limit": 0},
    "net.stages[0].after, '1' is int, expected bool": {"after": 1},
    "limit, after; close to it: width": {"widht": 8},
    "an integer of 1001 bits is out of range": {"width": 1 << 1000},
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_refusal_says_where_and_what_was_needed(why: str) -> None:
    value = {"stages": [{"width": 8} | REFUSED[why]], "times_us": {}}
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 -- the text is checked below
        decode(Net, value, "net")
    assert why in str(refusal.value)


def test_limits_hold_for_every_value_of_a_table() -> None:
    with pytest.raises(ValueError, match=r"net\.times_us\.dsp, -1 is out of range|-1\.0 is out"):
        decode(Net, {"stages": [], "times_us": {"cpu": 1, "dsp": -1}}, "net")


@pytest.mark.parametrize("text", [b'{"a": 1, "a": 2}', b"[NaN]", b"[" * 100_000, b"\xff"])
def test_text_with_two_meanings_or_none_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- UnicodeDecodeError and JSONDecodeError are
        parse_json(text)
