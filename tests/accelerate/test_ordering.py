"""B4: the published golden order, its mirror image, and pending outputs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nnstretch.accelerate.steps.ordering import (
    best_order,
    breadth_first,
    depth_first,
    lowest_first,
    pending_before_each,
)

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "data" / "ordering_golden.json").read_text(encoding="utf-8")
)
NAMES = GOLDEN["instances"]
NEEDS = {name: tuple(a for a, b in GOLDEN["edges"] if b == name) for name in NAMES}
SIZES = dict.fromkeys(NAMES, 1)


def test_depth_first_is_the_published_order() -> None:
    order = depth_first(NAMES, NEEDS)
    assert list(order) == GOLDEN["expected"]["dfs"]["order"]
    pending = pending_before_each(order, NEEDS, SIZES)
    assert pending == GOLDEN["expected"]["dfs"]["pending_before_each"]
    assert max(pending) == 4


def test_breadth_first_is_the_published_order() -> None:
    order = breadth_first(NAMES, NEEDS)
    assert list(order) == GOLDEN["expected"]["bfs"]["order"]
    pending = pending_before_each(order, NEEDS, SIZES)
    assert pending == GOLDEN["expected"]["bfs"]["pending_before_each"]
    assert max(pending) == 8


def test_depth_first_is_taken_where_fewer_wait_and_on_a_tie() -> None:
    assert best_order(NAMES, NEEDS, SIZES) == depth_first(NAMES, NEEDS)
    chain = ["a", "b"]
    assert best_order(chain, {"a": (), "b": ("a",)}, {"a": 1, "b": 1}) == ("a", "b")


def test_the_mirror_image_starts_with_the_lowest_index() -> None:
    mirror = GOLDEN["mirror_variant"]
    sizes = list(mirror["groups"].items())
    names = [f"{group}.{index}" for group, count in sizes for index in range(count)]
    needs: dict[str, tuple[str, ...]] = dict.fromkeys(names, ())
    for (before, count), (after, fewer) in pairwise(sizes):
        ratio = count // fewer
        for index in range(fewer):
            pieces = [f"{before}.{index * ratio + k}" for k in range(ratio)]
            needs[f"{after}.{index}"] = tuple(pieces)
    order: list[str] = []
    for name in lowest_first(names, needs):
        order += [f"cat:{name}", name] if needs[name] else [name]
    assert order == mirror["order"]


@given(st.data())
def test_any_order_keeps_needs_and_holds_each_instance_once(data: st.DataObject) -> None:
    names = [f"i{k}" for k in range(data.draw(st.integers(1, 9)))]
    needs: dict[str, tuple[str, ...]] = {}
    for place, name in enumerate(names):
        earlier = st.lists(st.sampled_from(names[:place]), unique=True) if place else st.just([])
        needs[name] = tuple(data.draw(earlier))
    for order in (
        depth_first(names, needs),
        breadth_first(names, needs),
        lowest_first(names, needs),
    ):
        assert sorted(order) == sorted(names)
        for name in names:
            assert all(order.index(need) < order.index(name) for need in needs[name])
