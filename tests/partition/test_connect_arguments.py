"""PipelineConfig in the hands of an odd caller: each argument is refused by name, on one line."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnstretch.errors import LONGEST_MESSAGE, BadInput, NnstretchError, UnknownName
from nnstretch.graph import TensorSpec
from nnstretch.partition.connect import PipelineConfig
from nnstretch.partition.module_graph import Module
from nnstretch.pipeline import TensorDecl

ENDS = (TensorDecl("x", TensorSpec((1, 1))),)
FIRST, SECOND = Module("a", ENDS, ENDS), Module("b", ENDS, ENDS)
ODD = (
    *(
        True,
        -1,
        1 << 30,
        10**400,
        10**5000,
        math.nan,
        math.inf,
        "",
        "1" * 6000,
        "\n",
        b"x",
        object(),
    ),
    *([], [None], {}, {1}, slice(0), range(3), np.zeros((2, 2)), np.float32(1), Path("\0"), len),
)
USES: dict[str, tuple[Callable[[PipelineConfig, Any], object], str]] = {
    "graph": (lambda c, odd: PipelineConfig(odd), "graph is "),
    "key": (lambda c, odd: c[odd], "unknown key .*, pipeline"),
    "input": (lambda c, odd: c["input"][odd].connect(odd), "pipeline input|cannot connect"),
    "output": (lambda c, odd: c["output"][odd], "unknown pipeline output"),
    "group": (lambda c, odd: c["param_group"][odd].connect(odd), "param|cannot connect"),
    "key of a module": (lambda c, odd: c[FIRST][odd], "unknown key .*, module a"),
    "input of a module": (lambda c, odd: c[FIRST]["input"][odd], "unknown input .*, module a"),
    "output of a module": (lambda c, odd: c[FIRST]["output"][odd], "unknown output .*, module a"),
    "spec": (lambda c, odd: c.pipe_input("i", odd), "spec is "),
    "module": (lambda c, odd: c.get_mod_idx(odd), "module is "),
    "threads": (lambda c, odd: c[FIRST].set(threads=odd), "threads is .*, module a"),
    "capacity": (lambda c, odd: c[FIRST].set(capacity=odd), "capacity is .*, module a"),
    "inputs": (lambda c, odd: c[Module("m", odd, ENDS)], "inputs of a module is"),
    "params": (lambda c, odd: c[Module("m", ENDS, ENDS, odd)], "params of a module is"),
    "call": (lambda c, odd: c[Module("m", ENDS, ENDS, call=odd)], "call of a module is"),
}


def config() -> PipelineConfig:
    connected = PipelineConfig()
    connected["input"]["i"].connect(connected[FIRST]["input"]["x"])
    connected[FIRST]["output"][0].connect(connected[SECOND]["input"]["x"])
    connected[SECOND]["output"][np.int64(0)].connect(connected["output"]["0"])
    return connected


@pytest.mark.parametrize("use", USES)
def test_an_odd_argument_is_refused_by_name_and_changes_nothing(use: str) -> None:
    call, named = USES[use]
    for odd in ODD:
        if use == "call" and isinstance(odd, str):
            continue  # a text, which the bundle judges
        changed = config()
        changed[FIRST]
        before = changed.graph
        with pytest.raises(NnstretchError, match=named) as refused:
            call(changed, odd)
        assert str(refused.value).isprintable()
        assert len(str(refused.value)) <= LONGEST_MESSAGE
        assert changed.graph == before


def test_processors_are_a_list_of_names() -> None:
    """A lone text was read as a replica for each of its letters."""
    for odd in (*ODD, "cpu", {"cpu"}, ("cpu", 1)):
        if isinstance(odd, list) and not odd:
            continue  # none, as a Python stage has
        with pytest.raises(BadInput, match=r"processors is .*, module a, give a list of names"):
            config()[FIRST].set(processors=odd)


def test_an_unknown_setting_is_named_with_those_there_are() -> None:
    with pytest.raises(UnknownName, match="unknown setting 'cpus', module a, it has processors, t"):
        config()[FIRST].set(cpus=3)


def test_a_list_of_processors_is_kept() -> None:
    changed = config()
    changed[FIRST].set(processors=["cpu", "dsp"], threads=2)
    assert changed.graph.settings["a"].processors == ("cpu", "dsp")
