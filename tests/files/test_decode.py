"""The one decoder of foreign JSON: what it refuses, and that it says where."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.files.decode import decode, require_format, tolerant
from nnstretch.files.json_text import parse_json
from nnstretch.files.limits import Length, OneOf, Only, Range


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


def test_limits_hold_for_every_key_of_a_table() -> None:
    kind = dict[Annotated[str, OneOf(("macs", "bytes"))], float]
    assert decode(kind, {"macs": 1}, "file") == {"macs": 1.0}
    with pytest.raises(ValueError, match=r"^file, unknown key 'x', it is one of macs, bytes"):
        decode(kind, {"x": 1}, "file")
    with pytest.raises(ValueError, match=r"^file, 9 is out of range"):
        decode(dict[Annotated[int, Range(1, 8)], float], {"9": 1}, "file")


@pytest.mark.parametrize("text", [b'{"a": 1, "a": 2}', b"[NaN]", b"[" * 100_000, b"\xff"])
def test_text_with_two_meanings_or_none_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- UnicodeDecodeError and JSONDecodeError are
        parse_json(text)


def test_a_number_of_more_digits_than_python_converts_is_told_as_such() -> None:
    with pytest.raises(ValueError, match=r"^a whole number of more than \d+ digits$"):
        parse_json(b'{"a": 1%s}' % (b"0" * 4400))


@dataclass(frozen=True, slots=True)
class Everything:
    rates: Annotated[tuple[Annotated[float, Range(0, 1e300)], ...], Length(1, 3)] = (0.0,)
    ends: tuple[int, float] = (0, 0.0)
    depth: Annotated[int, Range(1)] | Annotated[str, Only(str.isalpha, "letters")] | None = None
    counts: dict[int, Stage] | None = None
    rising: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if list(self.rising) != sorted(self.rising):
            raise ValueError(f"{self.rising[:2]}, needed are rising numbers")


TRAPS = st.sampled_from([True, 1e400, -1e400, float("nan"), 10**400, -0.0, "", "abc", []])
TRAPS_AS_KEYS = st.sampled_from(["0", "7", "-1", "width", 3, None, True])
ANYTHING = st.recursive(
    TRAPS | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | TRAPS_AS_KEYS, inner)
    ),
    max_leaves=8,
)
STAGES = st.fixed_dictionaries(
    {"width": st.integers(0, 5000) | ANYTHING},
    optional={"share": st.floats(0, 2) | ANYTHING, "kind": st.just("pool") | ANYTHING},
)
NEAR = st.fixed_dictionaries(
    {},
    optional={
        "rates": st.lists(st.floats(0, 9) | st.integers(0, 9) | ANYTHING, max_size=4) | ANYTHING,
        "ends": st.tuples(st.integers(), st.floats() | ANYTHING).map(list) | ANYTHING,
        "depth": st.integers(0, 3) | ANYTHING,
        "counts": st.dictionaries(st.sampled_from(["0", "7", "-1"]), STAGES) | ANYTHING,
        "rising": st.lists(st.integers(), max_size=2) | ANYTHING,
    },
)


@pytest.mark.slow
@given(NEAR | ANYTHING)
def test_any_value_satisfies_its_annotations_or_is_refused_with_its_path(value: Any) -> None:
    read, refusal = None, ""
    try:
        read = decode(Everything, value, "file")
    except ValueError as error:
        refusal = f"{type(error).__name__} {error}"
    if read is not None:
        assert_satisfies(read)
        return
    assert refusal.startswith(("ValueError file, ", "ValueError file."))
    assert len(refusal) < 500
    assert "\n" not in refusal


def assert_satisfies(read: Everything) -> None:
    """Check by hand what the annotations of `Everything` and `Stage` say."""
    assert 1 <= len(read.rates) <= 3
    assert all(type(rate) is float and 0 <= rate <= 1e300 for rate in read.rates)
    assert (type(read.ends[0]), type(read.ends[1]), len(read.ends)) == (int, float, 2)
    assert math.isfinite(read.ends[1])
    depth = read.depth
    assert depth is None or (depth.isalpha() if isinstance(depth, str) else type(depth) is int)
    assert not isinstance(depth, int) or depth >= 1
    for count, stage in (read.counts or {}).items():
        assert type(count) is int
        assert type(stage.width) is int
        assert 1 <= stage.width <= 4096
        assert type(stage.share) is float
        assert 0 <= stage.share < 1
        assert stage.kind in ("conv", "pool")
    assert list(read.rising) == sorted(read.rising)


DEEP: list[Any] = []
DEEP.append(DEEP)


@pytest.mark.parametrize(
    "value",
    [
        DEEP,
        {"rates": DEEP},
        {"rates": [1, DEEP]},
        {"rising": [[10**5000, DEEP]]},
        {"rising": [DEEP]},
    ],
)
def test_a_list_that_holds_itself_is_refused_in_a_short_line(value: Any) -> None:
    with pytest.raises(ValueError, match=r"is list, expected") as refusal:
        decode(Everything, value, "file")
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"rates": []}, "file.rates, 0 items, needed are 1 to 3"),
        ({"rates": [{}] * 4}, "file.rates, 4 items"),
        (
            {"rates": [1, 10**400]},
            "file.rates[1], 'an integer of 1329 bits' is int, expected float",
        ),
        ({"ends": [1]}, "file.ends, 1 items, needed are 2"),
        ({"ends": [1, "x"]}, "file.ends[1], 'x' is str, expected float"),
        ({"depth": 1.5}, "file.depth, '1.5' is float, expected int or str or None"),
        ({"depth": "3x"}, "file.depth, '3x', needed is letters"),
        ({"counts": {"7": {"width": 0}}}, "file.counts.7.width, 0 is out of range"),
        ({"rising": [2, 1]}, "file, (2, 1), needed are rising numbers"),
        ({3: 1}, "file, unknown key 3"),
    ],
)
def test_the_path_leads_to_the_fault(value: Any, why: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 -- the text is checked below
        decode(Everything, value, "file")
    assert why in str(refusal.value)


@pytest.mark.parametrize(
    ("value", "accepted"), [(1, True), (True, False), ("1", False), (9, False)]
)
def test_a_format_is_a_number_that_this_version_reads(value: Any, accepted: bool) -> None:
    if accepted:
        assert require_format({"format": value}, (1, 2)) == 1
        return
    with pytest.raises(ValueError, match=r"unknown format .*, this version reads format 1 and 2"):
        require_format({"format": value}, (1, 2))


@tolerant
@dataclass(frozen=True, slots=True)
class StageView:
    width: int
    kind: str = "conv"
    details: object = None


def test_a_view_ignores_what_it_lacks_and_null_reads_like_an_absent_key() -> None:
    value = {"width": 8, "kind": None, "details": {"a": [1]}, "depth": 2}
    assert decode(StageView, value, "stage") == StageView(8, "conv", {"a": [1]})
    with pytest.raises(ValueError, match="stage, key 'width' is missing"):
        decode(StageView, {"width": None}, "stage")


def test_a_whole_number_of_more_than_64_bits_is_refused() -> None:
    assert decode(int, (1 << 64) - 1, "seed") == (1 << 64) - 1
    for odd in (1 << 64, -(1 << 64), 10**400, 10**5000):
        with pytest.raises(ValueError, match=r"^seed, an integer of \d+ bits is out of range"):
            decode(int, odd, "seed")
