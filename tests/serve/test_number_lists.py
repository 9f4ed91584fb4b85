"""Long lists of numbers are read as the standard library reads them, and refused as it refuses."""

from __future__ import annotations

import json
import re
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.bundle.manifest import Port
from nnstretch.errors import BadInput
from nnstretch.graph import TensorSpec
from nnstretch.serve import number_lists
from nnstretch.serve.number_lists import NumberList, text_of_numbers, without_long_lists
from nnstretch.serve.tensors import tensor_of_json

SHAPE = (2, 3, 4)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_lists, "PIECE_BYTES", 16)
    monkeypatch.setattr(number_lists, "PIECE_NUMBERS", 5)
    monkeypatch.setattr(number_lists, "LONG_BYTES", 40)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(1 << 53), 1 << 53),
        min_size=24,
    ),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_numbers_are_those_of_the_standard_library(
    numbers: list[float], nested: bool, indent: int | None
) -> None:
    data: object = numbers[:24]
    if nested:
        data = [[numbers[12 * i + 4 * k :][:4] for k in range(3)] for i in range(2)]
    text = json.dumps({"inputs": [{"data": data, "id": [1, 2]}]}, indent=indent).encode()
    shortened = without_long_lists(text)
    item = json.loads(shortened.text)["inputs"][0]
    assert item["id"] == [1, 2]
    long_list = shortened.data_of(item)
    assert isinstance(long_list, NumberList)
    assert long_list.numbers(SHAPE).tolist() == np.asarray(numbers[:24]).tolist()


@pytest.mark.parametrize(
    "text",
    [
        "[[1,2],[3,4],[5,6]]",
        "[[1,2,3],[4,5]]",
        "[1,2,3,4,5]",
        "[1,2,3,4,5,6,7]",
        "[1,2,3,4,5,]",
        "[1[,2,3],[4,5,6]]",
        "[[1,2,3]4,[5,6]]",
        "[[1,2 ,3 ],[4,5,6 [],]]",
        '[1,2,3,4,5,"6"]',
        "[1,2,3,4,5,NaN]",
        "[1,2,3,4,5,06]",
        "[1,2,3,4,5,6",
    ],
)
def test_what_is_no_list_of_the_shape_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        NumberList(text.encode()).numbers((2, 3))


@pytest.mark.parametrize("text", ["[1,2,3,4,5,6]", "[[1,2,3],[4,5,6]]", "[ [1, 2,3]\n,[4,5,6 ] ]"])
def test_lists_of_the_shape_are_taken(text: str) -> None:
    assert NumberList(text.encode()).numbers((2, 3)).tolist() == [1, 2, 3, 4, 5, 6]


def test_only_long_lists_under_data_are_taken_out() -> None:
    long, deep = ", ".join("1" * 30), "[" * 60
    for text in (f'{{"shape": [{long}]}}', f'{{"data": {deep}', '{"data": [1, 2]}', '"data": ['):
        assert without_long_lists(text.encode()).lists == {}
    text = f'{{"a": {{"data": [{long}]}}, "data": [{long}]}}'
    assert len(without_long_lists(text.encode()).lists) == 2


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where ends of lists are looked for."""
    begins: list[int] = []
    closing_of = number_lists.closing_of

    def noted(text: bytes, begin: int, depth: int) -> tuple[int, int]:
        begins.append(begin)
        return closing_of(text, begin, depth)

    monkeypatch.setattr(number_lists, "closing_of", noted)
    return begins


def test_lists_without_an_end_are_looked_for_once(searches: list[int]) -> None:
    assert without_long_lists(b'"data":[' * 1000).lists == {}
    assert len(searches) == 1
    short = b'"data":[1],' * 5
    assert without_long_lists(short * 200).text == short * 200
    assert len(searches) < 1100


@pytest.mark.parametrize("unit", [b"1,", b"]" * 3 + b",", b"] ] \n],", b"]]1]" + b" " * 50])
@pytest.mark.parametrize("first", [4, 256])
def test_ends_are_where_the_plain_pattern_has_them(
    monkeypatch: pytest.MonkeyPatch, unit: bytes, first: int
) -> None:
    monkeypatch.setattr(number_lists, "FIRST_LOOK_BYTES", first)
    text = unit * 60 + b" ] ]\t]\n] ,]" + unit * 60 + b"]]]]]"
    for depth in range(1, 7):
        for begin in (0, 1, 100, len(text) - 3):
            closing = re.compile(rb"\]\s*" * (depth - 1) + rb"\]").search(text, begin)
            expected = (len(text), 0) if closing is None else closing.span()
            assert number_lists.closing_of(text, begin, depth) == expected


@pytest.mark.slow
@pytest.mark.parametrize("unit", [b"]" * 31 + b",", (b"]" + b" " * 20) * 31 + b","])
def test_deep_ends_take_no_longer_than_numbers(
    monkeypatch: pytest.MonkeyPatch, unit: bytes
) -> None:
    monkeypatch.setattr(number_lists, "PIECE_BYTES", 16 << 10)

    def seconds(text: bytes) -> float:
        begin_s = time.thread_time()
        assert without_long_lists(b'{"data":' + b"[" * 32 + text).lists == {}
        return time.thread_time() - begin_s

    size = 4 << 20
    assert seconds(unit * (size // len(unit))) < 20 * seconds(b"1," * (size // 2)) + 0.1


def test_one_piece_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_lists, "MOST_PIECE_BYTES", 100)
    assert NumberList(b"[1,2,3%b]" % (b" " * 80)).numbers((3,)).tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="207 bytes without a comma"):
        NumberList(b"[1,2,3%b]" % (b" " * 200)).numbers((3,))


def test_many_begins_of_one_list_are_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b'"data":[' * 1000 + b"1]"
    monkeypatch.setattr(number_lists, "LONG_BYTES", len(text) + 1)
    ends = number_lists.ListEnds(text)
    assert {ends.behind(8 * number, 1) for number in range(1, 1000)} == {len(text)}
    assert ends.behind(len(text), 1) == 0


@pytest.mark.parametrize("text", ['["",' + '"",' * 300 + '"%s"]', "[" + "1," * 300 + '"%s"]'])
def test_text_becomes_no_table_as_wide_as_its_longest(text: str) -> None:
    data = (text % ("x" * 300_000)).encode()
    tracemalloc.start()
    with pytest.raises(ValueError, match="something else than numbers"):
        NumberList(data).numbers((302,))
    port = Port("x", TensorSpec((302,)))
    with pytest.raises(BadInput, match="data of input x are no numbers of FP32"):
        tensor_of_json(port, json.loads(data))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 20_000_000


@pytest.mark.parametrize("many", [1, 30])
def test_whole_numbers_of_any_size_are_real_numbers(many: int) -> None:
    data = [10**20, *([0.5] * many), -(1 << 64)]
    port = Port("x", TensorSpec((many + 2,)))
    for given_data in (data, NumberList(json.dumps(data).encode())):
        array = tensor_of_json(port, given_data)
        assert array.tolist() == np.array(data, np.float32).tolist()
    with pytest.raises(BadInput, match="data of input x are no numbers of FP32"):
        tensor_of_json(port, [10**400, *data[1:]])
    whole = Port("x", TensorSpec((many + 2,), "uint64"))
    with pytest.raises(BadInput, match="no numbers of UINT64"):
        tensor_of_json(whole, [10**20] * (many + 2))


def test_numbers_are_written_as_they_are_read() -> None:
    array = np.random.default_rng(0).standard_normal((3, 7)).astype(np.float32)
    assert json.loads(text_of_numbers(array)) == array.ravel().tolist()
    assert text_of_numbers(np.zeros((0,))) == "[]"


@pytest.mark.parametrize("word", ["true", "false"])
@pytest.mark.parametrize("many", [2, 20])
def test_truth_is_no_number(word: str, many: int) -> None:
    for data, expected in ((f"[[1e5], [{word}]]", True), ("[[1e5], [-2.5E+3]]", False)):
        numbers = data.replace("1e5", ", ".join(["1e5"] * many))
        assert number_lists.holds_truth(NumberList(numbers.encode())) is expected
        assert number_lists.holds_truth(json.loads(numbers)) is expected
