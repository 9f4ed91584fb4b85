"""Splitting by hand: the pieces compute what the whole computes, and hand over what is needed, each
value once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipeline_graphs import ONE, graphs, node, reference, run, run_pieces

from nnstretch.errors import BadInput, NnstretchError, UnknownName
from nnstretch.graph import Graph, Value, Weight
from nnstretch.partition.search.compute_layers import compute_layers
from nnstretch.partition.split_graph import split_graph
from nnstretch.partition.split_points import split_at, stages_of_text

VALUES = {"d": 3, "e": 5}


def ends(found: tuple[Graph, ...]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [(tuple(value.name for value in piece.inputs), piece.outputs) for piece in found]


REFERENCE_ENDS = [(("d",), ("o3", "o2")), (("o3", "e"), ("n",)), (("n", "o2"), ("out",))]


@pytest.mark.parametrize(
    "points",
    [
        [("add", 1), ("add", 4)],
        ["o3", "n"],
        ["n", "add:1"],
        ["add.Tensor:1", frozenset({"n", "o2"})],
    ],
)
def test_the_reference_network_falls_into_its_three_stages(points: list[str]) -> None:
    """Values are counted once though used twice, o2 skips a stage, and outputs are in order of
    their first use.
    """
    found = split_at(reference(), points)
    assert ends(found) == REFERENCE_ENDS
    assert run_pieces(found, VALUES)["out"] == 4 * 3 + 3 * 5 + 22


def test_ranges_of_the_printed_form_are_stages() -> None:
    text = "o1..o3, n1..n, thrice..out"
    assert ends(split_graph(reference(), stages_of_text(reference(), text))) == REFERENCE_ENDS


def test_a_set_of_tensors_on_parallel_branches_is_a_split_point() -> None:
    """No tensor alone separates what is before o2 and n from what is behind."""
    found = split_at(reference(), [["o2", "n1"]])
    assert ends(found) == [(("d",), ("n1", "o2")), (("n1", "e", "o2"), ("out",))]
    assert [one.name for one in found[1].nodes] == ["n2", "n", "thrice", "out"]
    assert run_pieces(found, VALUES)["out"] == 49


def test_what_picks_from_a_tuple_stays_with_it() -> None:
    """A tuple cannot cross: cutting between `split` and `getitem` hands the picked half over."""
    found = split_at(reference(), ["halves"])
    assert ends(found)[0] == (("d",), ("first", "o2"))
    assert run_pieces(found, VALUES)["out"] == 49


def test_a_value_read_twice_downstream_crosses_once() -> None:
    """The original makes a new input for every use."""
    graph = Graph(
        "twice",
        (Value("x", ONE),),
        (),
        (node("a", "add.Tensor", "%x", 1), node("b", "mul.Tensor", "%a", "%a")),
        ("b",),
    )
    assert ends(split_at(graph, ["a"])) == [(("x",), ("a",)), (("a",), ("b",))]


def test_weights_and_what_is_made_of_them_go_with_their_users() -> None:
    nodes = (
        node("half", "mul.Tensor", "%w", 2),
        node("a", "add.Tensor", "%x", "%half"),
        node("size", "sym_size.int", "%x", 0),
        node("grid", "full", "%size"),
        node("b", "add.Tensor", "%a", "%half"),
        node("c", "mul.Tensor", "%b", "%grid"),
    )
    graph = Graph("shared", (Value("x", ONE),), (Weight("w", ONE),), nodes, ("c",))
    first, second = split_at(graph, ["a"])
    assert [one.name for one in first.nodes] == ["half", "a"]
    assert [one.name for one in second.nodes] == ["half", "size", "grid", "b", "c"]
    assert [weight.name for weight in second.weights] == ["w"]
    assert [value.name for value in second.inputs] == ["a"], (
        "the batch size is read off what enters anyway"
    )
    assert run_pieces((first, second), {"x": 1, "w": 3})["c"] == run(graph, {"x": 1, "w": 3})["c"]


REFUSED = {
    "add:6": (
        UnknownName,
        "unknown split point add:6, network reference, it has 6, counted from 0",
    ),
    "conv2d:0": (UnknownName, "unknown split point conv2d:0, network reference, it has none"),
    "o9": (
        UnknownName,
        "unknown split point 'o9', network reference, no cut, module or node of this name",
    ),
    "o3+zz": (UnknownName, "unknown tensor 'zz'"),
    "out": (BadInput, "split point out splits nothing, network reference, everything is before it"),
    "o3,add:1": (
        BadInput,
        "splits nothing, network reference, nothing is between it and the point before it",
    ),
    "": (BadInput, "no split point in ''"),
    "o1..o3,n": (BadInput, "range o1..o3 among split points"),
    "o1..o3": (BadInput, "n1 and 4 more are in no range"),
    "o1..n,o3..out": (BadInput, "o3 is in two ranges"),
    "o3..o1,n1..out": (BadInput, "range o3..o1 ends before it starts"),
    "o1..zz": (UnknownName, "unknown node 'zz'"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_point_that_splits_nothing_or_is_not_there_is_named(text: str) -> None:
    kind, message = REFUSED[text]
    with pytest.raises(NnstretchError) as caught:
        stages_of_text(reference(), text)
    assert type(caught.value) is kind
    assert message in str(caught.value)


NO_POINTS = {
    "points is '0' (str), needed is Sequence": "0",
    "points[0] is 0 (int), needed is text or tuple or Collection": [0],
    "points[1] is None (NoneType), needed is text": ["o3", None],
    "split point output splits nothing, network reference, everything is before it": ["output"],
}


@pytest.mark.parametrize("message", NO_POINTS)
def test_what_is_no_split_point_is_refused(message: str) -> None:
    points: Any = NO_POINTS[message]
    with pytest.raises(BadInput) as caught:
        split_at(reference(), points)
    assert message in str(caught.value)


def test_a_module_called_output_is_a_split_point() -> None:
    nodes = (
        replace(node("a", "add.Tensor", "%x", 1), module="output"),
        node("b", "mul.Tensor", "%a", 2),
    )
    graph = Graph("named", (Value("x", ONE),), (), nodes, ("b",))
    assert ends(split_at(graph, ["output"])) == [(("x",), ("a",)), (("a",), ("b",))]


def test_values_do_not_run_backwards() -> None:
    with pytest.raises(BadInput, match="n1 in stage 0 reads o3 of stage 1"):
        split_graph(reference(), [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0])


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(graphs(), st.data())
def test_any_split_of_any_graph_computes_the_same(graph: Graph, data: st.DataObject) -> None:
    values = {"x": 2, "y": 7, "w0": 1, "w1": 2, "w2": 3}
    count = data.draw(st.integers(0, 3))
    borders = sorted(
        data.draw(st.lists(st.integers(0, len(graph.nodes)), min_size=count, max_size=count))
    )
    try:
        found = split_graph(
            graph, [sum(border <= i for border in borders) for i in range(len(graph.nodes))]
        )
    except BadInput as refusal:
        assert "has no operator" in str(refusal) or "batch size" in str(refusal)  # noqa: PT017
        return
    whole, parts = run(graph, values), run_pieces(found, values)
    assert {name: parts[name] for name in graph.outputs} == {
        name: whole[name] for name in graph.outputs
    }
    written = [name for piece in found for name in piece.outputs]
    assert len(written) == len(set(written))
    for piece in found:
        assert len({value.name for value in piece.inputs}) == len(piece.inputs)


@settings(deadline=None, max_examples=60)
@given(graphs())
def test_layers_are_in_order_and_every_one_works(graph: Graph) -> None:
    found = compute_layers(graph)
    assert list(found) == sorted(found)
    assert set(found) == set(range(found[-1] + 1))
    try:
        assert len(split_graph(graph, found)) == found[-1] + 1
    except BadInput as refusal:
        assert "batch size" in str(refusal)  # noqa: PT017


def test_a_compute_layer_is_an_intensive_operator_and_the_cheap_ones_behind_it() -> None:
    names = ["pad", "conv", "relu", "conv_1", "norm", "relu_1"]
    kinds = ["add.Tensor", "conv2d", "relu", "conv2d", "batch_norm", "relu"]
    reads = ["%x", "%pad", "%conv", "%relu", "%conv_1", "%norm"]
    graph = Graph(
        "chain",
        (Value("x", ONE),),
        (),
        tuple(node(n, k, r) for n, k, r in zip(names, kinds, reads, strict=True)),
        ("relu_1",),
    )
    assert compute_layers(graph) == (
        0,
        1,
        1,
        2,
        2,
        2,
    ), "a cut before the first convolution divides, too"
