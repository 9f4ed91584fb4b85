"""Copies of a processor: what they are called, and what they lose beside others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nnstretch.errors import UnknownName
from nnstretch.predict import load_soc
from nnstretch.soc_instances import instances_named_by, instantiate, replace_processors

MI9 = load_soc("mi9")
PAIRED = replace(MI9, neighbours=(), contention={frozenset({"cpu", "dsp"}): 1.25})


def test_copies_of_a_processor_slow_others_down_as_it_does() -> None:
    soc, names = instantiate(PAIRED, ("cpu", "cpu", "dsp"))
    assert names == ("cpu0", "cpu1", "dsp")
    assert soc.contention_factor(frozenset({"cpu1", "dsp"})) == 1.25
    assert soc.contention_factor(frozenset({"cpu0", "cpu1"})) == 1.0
    assert instantiate(MI9, ())[0].processors == MI9.processors
    again = instances_named_by(PAIRED, ["cpu1", "dsp", "cpu0"])
    assert [processor.name for processor in again.processors] == ["cpu1", "cpu0", "dsp", "gpu"]
    assert again.contention_factor(frozenset({"cpu1", "dsp"})) == 1.25
    with pytest.raises(UnknownName, match="unknown processor 'npu0'"):
        instances_named_by(MI9, ["npu0"])


def test_copies_of_a_processor_slow_three_down_as_it_does() -> None:
    several = frozenset({"cpu", "gpu", "dsp"})
    soc, names = instantiate(replace(PAIRED, contention={several: 1.7}), ("cpu", *several))
    assert soc.contention_factor(frozenset(names)) == 1.7
    assert soc.contention_factor(frozenset(names) - {"gpu"}) == 1.0


def test_a_bundle_names_copies_of_a_processor_whose_name_ends_in_a_digit() -> None:
    places = dict(zip(MI9.processor_names, ("cpu0", "cpu", "cpu1"), strict=True))
    chip = replace_processors(
        replace(MI9, neighbours=()), {old: (new,) for old, new in places.items()}
    )
    for name in ("cpu0", "cpu1"):
        instances = instantiate(chip, (name, name))
        assert instances[1] == (f"{name}0", f"{name}1")
        again = instances_named_by(chip, instances[1])
        for instance in instances[1]:
            assert replace(again.processor(instance), name=name) == chip.processor(name)
            assert again.predictor(instance) == chip.predictor(name)
    with pytest.raises(UnknownName, match="unknown processor 'cpu1x0'"):
        instances_named_by(chip, ["cpu1x0"])
