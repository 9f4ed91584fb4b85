"""Arguments of public functions: what is not what its annotation says is told by its name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnstretch.errors import BadInput
from nnstretch.files.checked import checked
from nnstretch.plan import Plan


@checked
def example(
    path: Path | str,
    names: Sequence[str] = (),
    plans: tuple[Plan, ...] | None = None,
    rows: Sequence[tuple[float, ...]] = (),
    count: int = 1,
    share: float = 0.5,
    plan: Plan | None = None,
    fresh: bool = False,
    tell: object = None,
) -> str:
    """Return its arguments as text."""
    return f"{path} {names} {plans} {rows} {count} {share} {plan} {fresh} {tell}"


def test_what_the_annotations_say_is_taken_as_it_is() -> None:
    assert example("a") == "a () None () 1 0.5 None False None"
    given = {"names": ["x"], "count": np.int64(2), "share": 1, "fresh": True, "tell": 1j}
    assert example(Path("a"), **given) == "a ['x'] None () 2 1 None True 1j"
    assert example("a", share=math.inf, count=(1 << 64) - 1).startswith(
        "a () None () 18446744073709551615"
    )
    assert example.__doc__ == "Return its arguments as text."


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"path": None}, r"path is None \(NoneType\), needed is Path or text"),
        ({"path": b"a"}, r"path is b'a' \(bytes\), needed is Path or text"),
        ({"path": "a\0"}, "path is 'a.*no file can be called so"),
        ({"path": "x" * 5000}, "path is 'x*'..., 5000 letters are too long"),
        ({"names": "cpu"}, r"names is 'cpu' \(str\), needed is Sequence of text$"),
        ({"names": ["x", 1]}, r"names\[1\] is 1 \(int\), needed is text$"),
        ({"names": range(2)}, r"names\[0\] is 0 \(int\)"),
        ({"names": {"x"}}, r"names is \{'x'\} \(set\), needed is Sequence of text$"),
        ({"plans": (None,)}, r"plans\[0\] is None \(NoneType\), needed is Plan$"),
        ({"plans": 3}, r"plans is 3 \(int\), needed is tuple of Plan or None$"),
        ({"rows": [(1.0,), (2, "3")]}, r"rows\[1\]\[1\] is '3' \(str\), needed is a number$"),
        ({"rows": [3]}, r"rows\[0\] is 3 \(int\), needed is tuple of numbers$"),
        ({"count": 1.0}, r"count is 1.0 \(float\), needed is a whole number"),
        ({"count": True}, r"count is True \(bool\), needed is a whole number"),
        ({"count": 10**400}, "count is an integer of 1329 bits"),
        ({"share": math.nan}, r"share is nan \(float\), needed is a number"),
        ({"share": 10**400}, "share is an integer of 1329 bits"),
        ({"share": "0.5"}, r"share is '0.5' \(str\), needed is a number"),
        ({"share": False}, r"share is False \(bool\), needed is a number"),
        ({"plan": "plan.yaml"}, r"plan is 'plan.yaml' \(str\), needed is Plan or None"),
        ({"fresh": 1}, r"fresh is 1 \(int\), needed is True or False"),
    ],
)
def test_what_is_of_another_kind_is_refused_by_its_name(given: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why) as refusal:
        example(**{"path": "a", **given})
    assert len(str(refusal.value)) < 300


def test_a_call_without_its_arguments_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'path'"):
        example()  # type: ignore[call-arg]
