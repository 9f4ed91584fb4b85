"""Predictor files: the same after a round trip, and refused in one line where anything in them is
wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import synthetic

from nnstretch.errors import BadInput, BrokenFile, UnsupportedOp
from nnstretch.files.decode import decode
from nnstretch.kernel import MOBILE_FUSION, ChannelBlockedLayout, FusionRules
from nnstretch.predict import load_soc, save_soc
from nnstretch.predict.fusion_rules_json import NamedOrRow, rules_document, rules_of
from nnstretch.predict.learned import Learned, estimate_many
from nnstretch.profile.fitting.fit_predictor import fit
from nnstretch.soc import Processor, Soc
from nnstretch.testing.strategies import KernelForm, KernelSize, kernel_of_form

ORT = FusionRules(
    frozenset({("conv", "relu"), ("conv", "add")}),
    False,
    ChannelBlockedLayout(16, 4, frozenset({"relu", "add"})),
)


@pytest.fixture(scope="module")
def learned() -> Learned:
    return fit(synthetic.samples(400, seed=4), "cpu", "float32")


@pytest.fixture
def folder(learned: Learned, tmp_path: Path) -> Path:
    save_soc(
        Soc(
            "host", (Processor("cpu", "cpu", 1),), "float32", {"cpu": learned}, fusion={"cpu": ORT}
        ),
        tmp_path / "host",
    )
    return tmp_path / "host"


def test_a_predictor_is_the_same_after_a_round_through_its_file(
    learned: Learned, folder: Path
) -> None:
    soc = load_soc(folder)
    assert soc.predictors["cpu"] == learned
    assert soc.rules("cpu") == ORT
    many = [sample.kernel for sample in synthetic.samples(300, seed=2)]
    assert np.array_equal(
        learned.estimate_many(many).high_us, estimate_many(soc.predictors["cpu"], many).high_us
    )


@pytest.mark.parametrize("name", ["mi9", "pixel6", "mi11"])
def test_shipped_chips_are_the_same_after_a_round_through_their_files(
    tmp_path: Path, name: str
) -> None:
    save_soc(load_soc(name), tmp_path / "copy")
    assert load_soc(tmp_path / "copy") == load_soc(name)
    assert json.loads((tmp_path / "copy" / "cpu.json").read_text())["format"] == 2
    assert load_soc(name).rules("cpu") == MOBILE_FUSION


def test_an_unwritable_predictor_leaves_no_file(tmp_path: Path) -> None:
    class Other:
        processor = "cpu"

    for predictors, message in (
        ({"cpu": Other()}, "a Other, processor cpu"),
        ({}, "no predictor, processor cpu of SoC host"),
    ):
        with pytest.raises(BadInput, match=message):
            save_soc(
                Soc("host", (Processor("cpu", "cpu", 1),), "float32", predictors), tmp_path / "host"
            )
    assert not (tmp_path / "host").exists()


NAMES = st.text(
    st.characters(categories=("L", "N"), include_characters="_"), min_size=1, max_size=12
)
RULES = st.builds(
    FusionRules,
    st.frozensets(st.tuples(NAMES, NAMES), max_size=20),
    st.booleans(),
    st.none()
    | st.builds(
        ChannelBlockedLayout,
        st.integers(1, 64),
        st.integers(1, 64),
        st.frozensets(NAMES, max_size=5),
    ),
    st.booleans(),
)


@given(rules=RULES | st.just(MOBILE_FUSION))
def test_rules_are_the_same_after_a_round_through_json(rules: FusionRules) -> None:
    assert (
        rules_of(decode(NamedOrRow, json.loads(json.dumps(rules_document(rules))), "here")) == rules
    )


def test_rules_have_one_printed_form() -> None:
    assert rules_document(MOBILE_FUSION) == "mobile"
    blocked = {"block": 16, "align": 4, "ops": ["add", "relu"]}
    assert rules_document(ORT) == {
        "pairs": ["conv+add", "conv+relu"],
        "after_activation": False,
        "copies_padding": False,
        "blocked": blocked,
    }


def drop(*path: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        del data[path[-1]]

    return change


def put(value: Any, *path: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = value

    return change


CONV = ("model", "families", "conv1x1.blocked")
TREE = (*CONV, "forest", "trees", 0)
BROKEN = [
    (put(3, "format"), r"cpu.json, unknown format 3, this version reads format 1 and 2"),
    (put("2", "format"), r"format '2'"),
    (drop("format"), r"'format' is missing"),
    (drop("unit"), r"'unit' is missing"),
    (
        put("ms", "unit", "latency"),
        r"predictor\.unit\.latency, unknown latency 'ms', it is one of us",
    ),
    (put("KiB", "unit", "size"), r"unknown size 'KiB'"),
    (drop("unit", "size"), r"'size' is missing"),
    (put(1, "colour"), r"unknown key 'colour'"),
    (drop("model"), r"'model' is missing"),
    (drop("form"), r"'form' is missing"),
    (put("forest", "form"), r"unknown form 'forest', it is one of analytic, learned"),
    (put("analytic", "form"), r"unknown key 'model', AnalyticFile has .*rates"),
    (put("desktop", "fusion"), r"unknown fusion 'desktop', it is one of mobile"),
    (
        put(["conv-relu"], "fusion", "pairs"),
        r"predictor\.fusion\.pairs\[0\], 'conv-relu', needed is KIND\+FOLLOWER",
    ),
    (
        put(0, "fusion", "blocked", "block"),
        r"predictor\.fusion\.blocked\.block, 0 is out of range, needed is at least 1",
    ),
    (put({}, "model", "families"), r"predictor\.model\.families, 0 items, needed are 1 to 200"),
    (drop(*CONV, "floor_us"), r"conv1x1\.blocked, key 'floor_us' is missing"),
    (drop(*CONV, "power"), r"conv1x1\.blocked, key 'power' is missing"),
    (drop(*CONV, "inputs"), r"key 'inputs' is missing"),
    (drop(*CONV, "forest"), r"key 'forest' is missing"),
    (put(None, *CONV, "inputs"), r"inputs, 'None' is NoneType, expected list"),
    (drop(*CONV, "terms", 0, "above"), r"terms\[0\], key 'above' is missing"),
    (drop(*CONV, "terms", 0, "only"), r"terms\[0\], key 'only' is missing"),
    (put(0, *CONV, "floor_us"), r"floor_us, 0\.0 is out of range"),
    (put([], *CONV, "ops"), r"ops, 0 items"),
    (put("mac", *CONV, "terms", 0, "column"), r"terms\[0\]\.column, unknown column 'mac'"),
    (
        put(-1.0, *CONV, "terms", 0, "us_per_unit"),
        r"terms\[0\]\.us_per_unit, -1.0 is out of range, needed is at least 0",
    ),
    (put(float("nan"), *CONV, "terms", 0, "us_per_unit"), r"not JSON, .*NaN is not a number"),
    (
        put(10**400, *CONV, "terms", 0, "above"),
        r"terms\[0\]\.above, 'an integer of 1329 bits' is int, expected float",
    ),
    (put("if:x", *CONV, "terms", 0, "only"), r"terms\[0\]\.only, 'if:x', needed is nothing or"),
    (put([5, 1], *CONV, "macs"), r"macs, \(5\.0, 1\.0\), needed is the least and the most"),
    (put([0.0], *CONV, "spread", "low"), r"spread, \[.*\] classes, needed is one number"),
    (put(1.5, *CONV, "power"), r"power, 1\.5 is out of range"),
    (put(["cin", "nope"], *CONV, "inputs"), r"inputs\[1\], 'nope', needed is a column or a flag"),
    (put(["cin"], *CONV, "inputs"), r"trees test feature \d+, .*1 inputs"),
    (put(1e6, *CONV, "forest", "baseline"), r"forest\.baseline, 1000000\.0 is out of range"),
    (put([{}] * 2000, *CONV, "forest", "trees"), r"trees, 2000 items, needed are 0 to 1000"),
    (put(0, *TREE, "left", 0), r"trees\[0\], .*needs one parent"),
    (put(0.5, *TREE, "left", 0), r"trees\[0\]\.left\[0\], '0.5' is float"),
    (put([0.0] * 100, *TREE, "value"), r"100 items"),
    (put([float("inf")], *TREE, "value"), r"not JSON, .*Infinity is not a number"),
    (put([1e5, 0, 0], *TREE, "value"), r"trees\[0\]"),
    (put([], "model"), r"predictor\.model, '\[\]' is list, expected dict"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_a_broken_file_is_refused_in_one_line(
    folder: Path, change: Callable[[Any], None], message: str
) -> None:
    data = json.loads((folder / "cpu.json").read_text())
    change(data)
    (folder / "cpu.json").write_text(json.dumps(data))
    with pytest.raises(BrokenFile, match=message) as refusal:
        load_soc(folder)
    assert "\n" not in str(refusal.value)
    assert "cpu.json" in str(refusal.value)
    assert len(str(refusal.value)) < 1000


@pytest.mark.parametrize(
    "text", ["", "[" * 100_000, "3" * 10_000, "[1, 2]", "null", '{"format": 1' + "0" * 5000 + "}"]
)
def test_a_file_that_is_no_predictor_is_refused_in_one_line(folder: Path, text: str) -> None:
    (folder / "cpu.json").write_text(text)
    with pytest.raises(BrokenFile, match=r"cpu\.json") as refusal:
        load_soc(folder)
    assert "\n" not in str(refusal.value)


def test_a_chip_cannot_name_files_outside_of_its_folder(folder: Path) -> None:
    data = json.loads((folder / "soc.json").read_text())
    data["processors"][0]["name"] = "../cpu"
    (folder / "soc.json").write_text(json.dumps(data))
    with pytest.raises(
        BrokenFile, match=r"soc.json, soc\.processors\[0\]\.name, '../cpu', needed is letters"
    ):
        load_soc(folder)


def test_unmeasured_kernels_are_refused_after_loading_too(folder: Path) -> None:
    with pytest.raises(
        UnsupportedOp, match="kind 'linear' was never measured, kernel k, processor cpu"
    ):
        load_soc(folder).predictors["cpu"].estimate(
            kernel_of_form(KernelForm("linear", "linear"), KernelSize(16, 16, 1, 1))
        )


def test_who_copies_beside_its_compute_is_what_the_file_says_or_the_kind_suggests(
    tmp_path: Path,
) -> None:
    chip = load_soc("mi9")
    assert {
        one.name: (one.copies_overlap_compute, one.overlaps_copies) for one in chip.processors
    } == {
        "cpu": (None, False),
        "gpu": (None, True),
        "dsp": (None, True),
    }
    said = {"cpu": True, "gpu": False, "dsp": None}
    save_soc(
        replace(
            chip,
            processors=tuple(
                replace(one, copies_overlap_compute=said[one.name]) for one in chip.processors
            ),
        ),
        tmp_path / "chip",
    )
    again = load_soc(tmp_path / "chip")
    assert {one.name: one.copies_overlap_compute for one in again.processors} == said
    assert [one.overlaps_copies for one in again.processors] == [True, False, True]
    assert (tmp_path / "chip" / "soc.json").read_text().count("copies_beside") == 2
