"""Every value of every kind of YAML file, left blank or replaced by what nobody can mean.

Recipes and plans have tests of their own (`test_recipe_loader.py`, `test_plan_yaml.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.errors import NnstretchError
from nnstretch.files.package_data import package_data
from nnstretch.files.strict_yaml import dump_yaml, parse_yaml
from nnstretch.files.workload.sweep_yaml import read_sweep
from nnstretch.files.workload.workload_yaml import read_workload

WORKLOAD = """
format: 1
soc: mi9
pool: {cpu: 1, gpu: 2}
policy: eft
queueing: true
seed: 3
durations: {kind: spread, spread: 0.1}
costs: costs.json
correction: true
wrong_costs: 1.5
handover_ms: 0.1
factors: {cpu: 2.0}
provenance: drawn
calibrated: false
applications:
- {name: a, costs_ms: {cpu: 1.5}, arrivals: {period_ms: 2.5, first: gap}, instances: 3}
- {name: b, model: net.nns, cut: 2, placement: kept, arrivals: {exponential_ms: 2},
   duration_ms: 9.5, deadline_ms: 4.5, priority: 1, queue_limit: 4}
- {name: c, model: net.nns, arrivals: {times_ms: [0.5, 1]}}
- {name: d, model: net.nns, arrivals: {csv: times.csv}}
"""
SWEEP = """
workload: w.yaml
pools: [{cpu: 1, gpu: 2}]
policies: [eft, rr]
rates: [1.5, 2]
trials: 3
"""
ACCELERATORS = ("stcp920.yaml",)
READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "workload": (WORKLOAD, read_workload),
    "sweep": (SWEEP, read_sweep),
    **{
        path.stem: (path.read_text(encoding="utf-8"), lambda path: load_accelerator(str(path)))
        for path in (package_data("accelerators") / name for name in ACCELERATORS)
    },
}
TOKENS = {
    "blank": "",
    "not a number": ".nan",
    "null": "null",
    "infinity": ".inf",
    "to the base 60": "1:30",
    "to the base 8": "0177",
    "401 digits": "1" + "0" * 400,
    "a number beyond all": "1.0e400",
    "minus 401 digits": "-1" + "0" * 400,
}


def fill(value: Any, path: tuple[Any, ...], found: dict[tuple[Any, ...], Any]) -> Any:
    """Return a value with a mark in place of every number, text and truth value; add the places."""
    if isinstance(value, dict):
        return {key: fill(inner, (*path, key), found) for key, inner in value.items()}
    if isinstance(value, list):
        return [fill(inner, (*path, at), found) for at, inner in enumerate(value)]
    found[path] = value
    return f"<{len(found)}>"


def put(values: dict[str, str]) -> Callable[[re.Match[str]], str]:
    return lambda mark: values[mark[1]]


def texts(document: str, token: str) -> Iterator[tuple[list[str], str]]:
    """Yield a place of a document, without numbers, and the document with a token there, once for
    all entries of a list that are alike.
    """
    found: dict[tuple[Any, ...], Any] = {}
    marked = dump_yaml(fill(parse_yaml(document, "test"), (), found), one_line_lists=False)
    before = {
        f"<{at}>": dump_yaml({"v": value})[4:-2] for at, value in enumerate(found.values(), 1)
    }
    seen = set()
    for at, place in enumerate(found, 1):
        names = [key for key in place if isinstance(key, str)]
        if (shape := (len(place), *names)) not in seen:
            seen.add(shape)
            yield names, re.sub(r"'?(<\d+>)'?", put(before | {f"<{at}>": token}), marked)


@pytest.mark.parametrize(
    ("kind", "token"),
    [
        pytest.param(kind, token, marks=[pytest.mark.slow] * (kind == "stcp920" and at > 1))
        for kind in READERS
        for at, token in enumerate(TOKENS)
    ],
)
def test_a_value_that_nobody_can_mean_is_refused_wherever_it_stands(
    kind: str, token: str, tmp_path: Path
) -> None:
    text, read = READERS[kind]
    path = tmp_path / "file.yaml"
    path.write_text(text, encoding="utf-8")
    read(path)
    for names, changed in texts(text, TOKENS[token]):
        path.write_text(changed, encoding="utf-8")
        with pytest.raises(NnstretchError) as refusal:
            pytest.fail(f"{names} is {TOKENS[token][:9]}: {read(path)!r:.300}")
        said = str(refusal.value)
        assert "\n" not in said
        assert len(said) < 700
        assert "line " in said or names[-1] in said, said
