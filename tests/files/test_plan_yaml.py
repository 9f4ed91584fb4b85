"""Plan files: what a stranger wrote is read exactly or refused in one line that names the
culprit.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.errors import BadPlan, BrokenFile, NnstretchError, UnknownName
from nnstretch.files.plan_yaml import parse_plan, plan_text, read_plan, write_plan
from nnstretch.plan import Branch, Plan, Segment

CONTRACT = """
format: 1
model: torchvision:resnet50
input: [1, 3, 224, 224]
merge: concat            # or project
segments:
  - {end: maxpool, processor: cpu}
  - end: layer1
    branches:
      - {processor: cpu, depth: 2, width: 192}
      - {processor: dsp, depth: 3, width: 0.5x}
  - {end: output, processor: cpu}
"""
READ = Plan(
    "torchvision:resnet50",
    (1, 3, 224, 224),
    (
        Segment("input", "maxpool", (Branch("cpu"),)),
        Segment("maxpool", "layer1", (Branch("cpu", 2, 192), Branch("dsp", 3, "0.5x"))),  # type: ignore[arg-type]
        Segment("layer1", "output", (Branch("cpu"),)),
    ),
)


def edited(old: str, new: str) -> str:
    assert old in CONTRACT
    return CONTRACT.replace(old, new, 1)


def test_the_form_of_the_contract_is_read_and_written() -> None:
    assert parse_plan(CONTRACT, "plan.yaml") == READ
    assert yaml.safe_load(plan_text(READ)) == yaml.safe_load(CONTRACT)


def test_explicit_starts_and_other_spellings_read_the_same() -> None:
    text = """
model: torchvision:resnet50
input_shape: [1, 3, 224, 224]
segments:
- {start: input, end: maxpool, branches: [{processor: cpu}]}
- {start: maxpool, end: layer1, merge: concat, branches: [{processor: cpu, depth: 2, width: 192}, {processor: dsp, depth: 3, width: 0.5x}]}
- {start: layer1, end: output, branches: [{processor: cpu}]}
"""
    assert parse_plan(text, "plan.yaml") == READ


def test_a_blank_key_is_refused_by_name_and_never_read_as_the_default() -> None:
    for key in ("width", "depth", "inner_ratio", "group_width", "activation", "width_in"):
        for blank in ("", " null", " ~"):
            text = edited("processor: cpu}", f"processor: cpu, {key}:{blank}}}")
            with pytest.raises(BadPlan, match=rf"segments\[0\]\.{key}, the key is left blank"):
                parse_plan(text, "x")
    for key in ("soc", "merge", "predicted"):
        with pytest.raises(BadPlan, match=rf"plan\.{key}, the key is left blank"):
            parse_plan(CONTRACT.replace("merge: concat", "").strip() + f"\n{key}:\n", "x")


names = st.text("abcdefgh.:_0123456789é", min_size=1, max_size=8)
whole = st.none() | st.integers(1, 4096)
scalable = whole | st.integers(1, 400).map(lambda n: f"{n / 100:.2f}x")
branches = st.builds(
    Branch,
    names,
    depth=scalable,
    width=scalable,
    inner_ratio=st.none() | st.floats(0.01, 64),
    group_width=whole,
    activation=st.none() | names,
    width_in=whole,
    width_out=whole,
)
segments = st.builds(
    Segment,
    names,
    names,
    st.lists(branches, min_size=1, max_size=3).map(tuple),
    st.sampled_from(("concat", "project")),
)
shapes = st.lists(st.integers(1, 512), min_size=1, max_size=5).map(tuple)
plans = st.builds(
    Plan, names, shapes, st.lists(segments, min_size=1, max_size=4).map(tuple), st.none() | names
)


@pytest.mark.slow
@given(plans)
def test_a_plan_reads_back_as_it_was(plan: Plan) -> None:
    assert parse_plan(plan_text(plan), "plan.yaml") == plan


def test_a_written_file_is_read_back(tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.yaml", READ)
    assert read_plan(tmp_path / "plan.yaml") == READ


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "width: 192",
            "width: 0",
            "plan.yaml, plan.segments[1].branches[0].width, 0 is out of range, needed is at least 1",
        ),
        ("width: 192", "width: -8", "width, -8 is out of range"),
        ("width: 192", "width: 1.5", "width, '1.5' is float, expected int or str or None"),
        ("width: 192", "width: true", "width, 'True' is bool, expected int"),
        ("width: 192", "width: 0x", "width, '0x', needed is a whole number or a ratio above 0"),
        ("width: 192", "width: 0.0x", "width, '0.0x', needed is"),
        ("width: 192", "width: halfx", "width, 'halfx', needed is"),
        ("width: 192", "width_in: 0.5x", "width_in, '0.5x' is str, expected int"),
        (
            "width: 192",
            "widht: 192",
            "plan.yaml, plan.segments[1].branches[0], unknown key 'widht'",
        ),
        ("width: 192", "inner_ratio: .nan", "inner_ratio, nan is not finite"),
        ("width: 192", "activation: [relu]", """activation, "['relu']" is list, expected str"""),
        ("depth: 2", "depth: 99999999", "depth, 99999999 is out of range"),
        ("merge: concat ", "merge: add ", "unknown merge 'add'"),
        ("merge: concat ", "merge: [concat] ", """merge, "['concat']" is list"""),
        ("format: 1", "format: 2", "format 2, this version reads format 1"),
        ("format: 1", "format: true", "format True"),
        ("model: torchvision:resnet50", "model: 3", "plan.model, '3' is int"),
        ("model: torchvision:resnet50", "name: x", "unknown key 'name'"),
        ("input: [1, 3, 224, 224]", "soc: mi9", "missing key input"),
        ("input: [1, 3, 224, 224]", "input: [1, 3, -1, 224]", "plan.input[2], -1 is out of range"),
        ("input: [1, 3, 224, 224]", "input: [1]\ninput_shape: [1]", "input and input_shape"),
        ("processor: cpu}", "processor: }", "[0].processor, the key is left blank, expected str"),
        ("end: maxpool", "start: , end: maxpool", "segments[0].start, the key is left blank"),
        ("processor: cpu}", "branches: }", "[0].branches, the key is left blank, expected list"),
        ("processor: cpu}", "processor: cpu, branches: }", "[0].branches, the key is left blank"),
        ("input: [1, 3, 224, 224]", "input: ", "plan.input, the key is left blank, expected list"),
        (
            "input: [1, 3, 224, 224]",
            "input: [1]\ninput_shape: ",
            "plan.input_shape, the key is left blank",
        ),
        ("format: 1", "format: ", "unknown format blank"),
        ("  branches:\n", "  depth: \n    branches:\n", "depth, the key is left blank"),
        ("  branches:\n", "  depth: 1\n    branches:\n", "depth is beside branches"),
        (
            "processor: cpu}",
            "depth: 1}",
            "plan.yaml, plan.segments[0], neither branches and processor",
        ),
        ("processor: cpu}", "branches: []}", "plan.segments[0].branches, 0 items"),
        (
            "processor: cpu}",
            "processor: cpu, branches: [{processor: cpu}]}",
            "both branches and processor",
        ),
        ("{end: maxpool, processor: cpu}", "maxpool", "plan.segments[0], 'maxpool' is str"),
        ("end: maxpool", "end: 3", "end, '3' is int"),
        ("width: 192", "width: 1:30", "line 10, 1:30 is a number to the base 60 or 8"),
        ("width: 192", "width: 0192", "width, '0192', needed is a whole number"),
        ("width: 192", "width: 0177", "0177 is a number to the base 60 or 8"),
        ("width: 192", "width: 1_92", "1_92 is a number to the base 60 or 8, or not in plain"),
        ("width: 192", "width: 0xC0", "0xC0 is a number to the base 60 or 8, or not in plain"),
        ("width: 192", "width: 192e0", "width, '192.0' is float"),
        ("width: 192", "width: 1, width: 2", "key width is there twice"),
        ("end: maxpool, ", "", "plan.segments[0], key 'end' is missing"),
    ],
)
def test_an_error_in_a_plan_is_named_in_one_line(old: str, new: str, said: str) -> None:
    with pytest.raises(NnstretchError) as refusal:
        parse_plan(edited(old, new), "plan.yaml")
    assert said in str(refusal.value)
    assert "plan.yaml" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.slow
def test_files_that_are_no_plan(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"gone\.yaml"):
        read_plan(tmp_path / "gone.yaml")
    for text in (
        "",
        "[]",
        "a: [",
        "\x00",
        "- 2001-99-99",
        "[" * 5000,
        "!!python/object:os.system {}",
        "? [a]\n: b",
        "{[a]: b}",
    ):
        with pytest.raises((BrokenFile, BadPlan), match=r"plan\.yaml"):
            parse_plan(text, "plan.yaml")
    (tmp_path / "plan.yaml").write_bytes(b"\xff\xfe\xd8")
    with pytest.raises(BrokenFile, match=r"plan\.yaml is no text, byte 0"):
        read_plan(tmp_path / "plan.yaml")


def test_a_bomb_of_aliases_makes_a_short_message() -> None:
    lines = [
        "a0: &a0 [1, 1]",
        *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)),
    ]
    with pytest.raises(BrokenFile, match="aliases stand for") as refusal:
        parse_plan("\n".join([*lines, "model: x", "segments: *a11"]), "plan.yaml")
    assert len(str(refusal.value)) < 500
    with pytest.raises(BadPlan, match=r"plan\.input\[0\]") as refusal:
        parse_plan(edited("[1, 3, 224, 224]", "&a [&b [1, 2], *b, *b]"), "plan.yaml")
    assert len(str(refusal.value)) < 500


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)
KEYS = ("format", "model", "input", "merge", "segments", "soc")


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(KEYS), anything, max_size=6))
def test_any_data_is_read_or_refused(changes: dict[str, Any]) -> None:
    check_refusal(yaml.safe_dump({**yaml.safe_load(CONTRACT), **changes}))


@given(
    st.integers(0, 2),
    st.sampled_from(("start", "end", "merge", "branches", "processor", "depth", "x")),
    anything,
)
def test_any_segment_is_read_or_refused(number: int, key: str, value: Any) -> None:
    data = yaml.safe_load(CONTRACT)
    data["segments"][number][key] = value
    check_refusal(yaml.safe_dump(data))


@pytest.mark.slow
@given(
    st.sampled_from(
        (
            "processor",
            "depth",
            "width",
            "inner_ratio",
            "group_width",
            "activation",
            "width_in",
            "width_out",
            "x",
        )
    ),
    anything,
)
def test_any_branch_is_read_or_refused(key: str, value: Any) -> None:
    data = yaml.safe_load(CONTRACT)
    data["segments"][1]["branches"][0][key] = value
    check_refusal(yaml.safe_dump(data))


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda b: b.decode("latin-1")))
@settings(max_examples=200)
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(NnstretchError) as refusal:
        parse_plan(text, "plan.yaml")
    assert "\n" not in str(refusal.value)


@given(st.integers(0, len(CONTRACT) - 1), st.characters())
def test_any_changed_letter_is_read_or_refused(at: int, letter: str) -> None:
    check_refusal(CONTRACT[:at] + letter + CONTRACT[at + 1 :])


def check_refusal(text: str) -> None:
    """Reads as a plan that writes and reads back, or is refused in one line."""
    refusal, plan = "", None
    try:
        plan = parse_plan(text, "plan.yaml")
    except NnstretchError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert plan is None or parse_plan(plan_text(plan), "plan.yaml") == plan


FIELDS = [(kind, field.name) for kind in (Plan, Segment, Branch) for field in fields(kind)]


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_a_plan_made_in_python_is_one_that_a_file_can_hold(
    kind: type, name: str, tmp_path: Path
) -> None:
    """Widths of numpy ended in an error of the YAML library."""
    for odd in (True, -1, 10**400, math.nan, b"x", [], {}, (1.5,), object(), np.int64(8), "a\nb"):
        branch, other = Branch("cpu", width=8), Branch("dsp", width="0.5x")
        segment = Segment("input", "output", (branch, other))
        if kind is Branch:
            segment = replace(segment, branches=(replace(branch, **{name: odd}), other))
        if kind is Segment:
            segment = replace(segment, **{name: odd})
        plan = Plan("net.py:make", (1, 3, 16, 16), (segment,))
        if kind is Plan:
            plan = replace(plan, **{name: odd})
        with pytest.raises(NnstretchError) as refused:
            write_plan(tmp_path / "plan.yaml", plan)
        assert name.removeprefix("input_") in str(refused.value)
        assert not (tmp_path / "plan.yaml").exists()
