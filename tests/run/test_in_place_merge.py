"""Branches write side by side into the tensor of their meeting point.

Where a merge does more than that, it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bundles import branched_bundle, feature_map, image, subgraph

from nnstretch.bundle.manifest import Manifest, Port, Subgraph
from nnstretch.graph import TensorSpec
from nnstretch.run.bound_memory import BoundNetwork
from nnstretch.run.in_place_merge import (
    concat_axis,
    copy_into,
    in_place_merges,
    is_plain_concat,
    slice_view,
)
from nnstretch.run.loaded_network import LoadedNetwork


class Joining:
    """A merge along an axis, and how often it ran."""

    def __init__(self, axis: int, factor: int = 1) -> None:
        self.axis, self.factor, self.runs = axis, factor, 0

    def run(self, inputs: Mapping[str, np.ndarray], /) -> Sequence[np.ndarray]:
        self.runs += 1
        whole = np.concatenate(list(inputs.values()), self.axis)
        return [(self.factor * whole).astype(whole.dtype)]


class Adding:
    """A branch."""

    def __init__(self, shape: tuple[int, ...], number: int) -> None:
        self.shape, self.number = shape, number

    def run(self, inputs: Mapping[str, np.ndarray], /) -> Sequence[np.ndarray]:
        (array,) = inputs.values()
        return [np.full(self.shape, array.flat[0] + self.number, array.dtype)]


def port(name: str, shape: Sequence[int], dtype: str = "float32", scale: float = 0.0) -> Port:
    return Port(name, TensorSpec(tuple(shape), dtype), scale=scale)


def network(
    shapes: Sequence[Sequence[int]], whole: Sequence[int], dtype: str = "float32"
) -> Manifest:
    """`x` goes to branches of these shapes, which meet in `whole`."""
    ends = [port(f"e{number}", shape, dtype) for number, shape in enumerate(shapes)]
    start, end = port("x", (1, 2), dtype), port("end", whole, dtype)
    subs = [subgraph(f"b{number}", "cpu", b"", [start], [one]) for number, one in enumerate(ends)]
    return Manifest(
        "m",
        None,
        (start,),
        (end,),
        (*subs, subgraph("merge", "cpu", b"", ends, [end], role="merge")),
        0.0,
    )


def backends(manifest: Manifest, merge: object) -> dict[str, object]:
    branches = {
        sub.name: Adding(sub.outputs[0].spec.shape, number + 1)
        for number, sub in enumerate(manifest.subgraphs[:-1])
    }
    return {**branches, "merge": merge}


def computed(bound_session: BoundNetwork, x: np.ndarray) -> np.ndarray:
    bound_session.enter({"x": x})
    for call in bound_session.calls.values():
        call()
    return bound_session.results()["end"]


@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.integers(0, 3))
def test_branches_write_side_by_side_along_any_axis_and_the_merge_runs_no_more(
    sizes: list[int], axis: int
) -> None:
    shape = [2, 3, 4, 2]
    shapes = [[size if i == axis else side for i, side in enumerate(shape)] for size in sizes]
    manifest = network(shapes, [sum(sizes) if i == axis else side for i, side in enumerate(shape)])
    merge = Joining(axis)
    bound_session = BoundNetwork(manifest, backends(manifest, merge))  # type: ignore[arg-type]
    seen = merge.runs
    for start in (1.0, 7.0):
        found = computed(bound_session, np.full((1, 2), start, np.float32))
        expected = [
            np.full(shape, start + number + 1, np.float32) for number, shape in enumerate(shapes)
        ]
        assert np.array_equal(found, np.concatenate(expected, axis))
    assert merge.runs == seen


@pytest.mark.parametrize(
    "merge", [Joining(1, factor=2), Joining(2)], ids=["another number", "another order"]
)
def test_a_merge_that_does_more_is_run(merge: Joining) -> None:
    manifest = network([(1, 2, 2), (1, 2, 2)], (1, 4, 2) if merge.axis == 1 else (1, 2, 4))
    if merge.axis == 2:  # says it lines up channels, but turns them round
        merge.run = lambda inputs: [np.concatenate(list(inputs.values()), 2)[:, :, ::-1]]  # type: ignore[method-assign]
    bound_session = BoundNetwork(manifest, backends(manifest, merge))  # type: ignore[arg-type]
    found = computed(bound_session, np.ones((1, 2), np.float32))
    parts = {f"e{number}": np.full((1, 2, 2), 2.0 + number, np.float32) for number in range(2)}
    assert np.array_equal(found, merge.run(parts)[0])


def test_a_merge_of_truth_values_is_run() -> None:
    manifest = network([(1, 2), (1, 3)], (1, 5), "bool")
    merge = Joining(1)
    assert in_place_merges(manifest, backends(manifest, merge)) == {}  # type: ignore[arg-type]
    bound_session = BoundNetwork(manifest, backends(manifest, merge))  # type: ignore[arg-type]
    assert computed(bound_session, np.zeros((1, 2), bool)).tolist() == [[True] * 5]
    assert merge.runs == 1


def test_parts_that_somebody_else_reads_or_that_leave_the_network_stay_apart() -> None:
    manifest = network([(1, 2, 2), (1, 3, 2)], (1, 5, 2))
    assert in_place_merges(manifest, backends(manifest, Joining(1))) == {"merge": 1}  # type: ignore[arg-type]
    e0 = manifest.subgraphs[0].outputs[0]
    leaving = replace(manifest, outputs=(*manifest.outputs, e0))
    reader = subgraph("reader", "cpu", b"", [e0], [port("y", (1, 2, 2))])
    read = replace(manifest, subgraphs=(*manifest.subgraphs, reader))
    for one in (leaving, read):
        assert in_place_merges(one, backends(manifest, Joining(1))) == {}  # type: ignore[arg-type]


def test_a_branch_with_a_merge_in_its_place_is_never_taken_for_one() -> None:
    manifest = network([(1, 2, 2), (1, 3, 2)], (1, 5, 2))
    subs = tuple(replace(sub, role="branch") for sub in manifest.subgraphs)
    assert in_place_merges(replace(manifest, subgraphs=subs), backends(manifest, Joining(1))) == {}  # type: ignore[arg-type]


def test_integers_of_two_scales_are_not_lined_up() -> None:
    ends = [port("a", (1, 2, 3), "int8", 0.1), port("b", (1, 2, 3), "int8", 0.2)]
    merge = subgraph("merge", "cpu", b"", ends, [port("c", (1, 2, 6), "int8", 0.1)], role="merge")
    assert concat_axis(merge) is None
    alike = replace(merge, inputs=(ends[0], replace(ends[1], scale=0.1)))
    assert concat_axis(alike) == 2


def test_meeting_points_of_meeting_points() -> None:
    manifest = network([(1, 2, 2), (1, 3, 2)], (1, 5, 2))
    inner, more = manifest.outputs[0], port("more", (1, 1, 2))
    last = port("end", (1, 6, 2))
    renamed = port("inner", inner.spec.shape)
    merge: Subgraph = replace(manifest.subgraphs[-1], outputs=(renamed,))
    subs = (
        *manifest.subgraphs[:-1],
        merge,
        subgraph("b2", "cpu", b"", [manifest.inputs[0]], [more]),
        subgraph("outer", "cpu", b"", [renamed, more], [last], role="merge"),
    )
    both = replace(manifest, subgraphs=subs, outputs=(last,))
    made = {**backends(manifest, Joining(1)), "b2": Adding((1, 1, 2), 9), "outer": Joining(1)}
    found = computed(BoundNetwork(both, made), np.zeros((1, 2), np.float32))  # type: ignore[arg-type]
    assert found[0, :, 0].tolist() == [1, 1, 2, 2, 2, 9]


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(0, 3),
    st.sampled_from(["int8", "float32", "bool"]),
)
def test_a_part_is_filled_exactly_and_nothing_beside_it(
    shape: list[int], axis: int, dtype: str
) -> None:
    axis %= len(shape)
    whole = np.zeros([size + 3 if i == axis else size for i, size in enumerate(shape)], dtype)
    source = np.ones(shape, dtype)
    copy_into(slice_view(whole, axis, 2, shape[axis]))(source)
    assert np.array_equal(slice_view(whole, axis, 2, shape[axis]), source)
    assert np.count_nonzero(whole) == source.size


def test_onnx_runtime_writes_parts_of_a_channels_last_tensor() -> None:
    """Gaps between rows: it writes to memory of its own first."""
    bundle = branched_bundle(segments=1, predicted=False)
    subs = [sub for sub in bundle.manifest.subgraphs if sub.name == "s1_cpu"]
    backend = LoadedNetwork(bundle).subgraphs.backends["s1_cpu"]
    reads = (
        np.random.default_rng(0).standard_normal(subs[0].inputs[0].spec.shape).astype(np.float32)
    )
    shape = subs[0].outputs[0].spec.shape
    whole = np.zeros((*shape[:3], shape[3] + 5), np.float32)
    backend.bind({subs[0].inputs[0].name: reads}, [slice_view(whole, 3, 1, shape[3])])()  # type: ignore[attr-defined]
    (expected,) = backend.run({subs[0].inputs[0].name: reads})
    assert np.array_equal(whole[..., 1:-4], expected)
    assert np.count_nonzero(whole) == np.count_nonzero(expected)


def test_a_whole_bundle_has_nothing_left_to_merge() -> None:
    bundle = branched_bundle(segments=2, predicted=False)
    network = LoadedNetwork(bundle)
    assert in_place_merges(bundle.manifest, network.subgraphs.backends) == {
        "s1_merge": 1,
        "s2_merge": 1,
    }
    bound_session = network.bound_session()
    bound_session.enter(network.inputs(image(bundle)))
    for call in bound_session.calls.values():
        call()
    assert np.array_equal(
        bound_session.results()["s2.merged"],
        network.outputs(network.all_tensors(network.inputs(image(bundle))), raw=True),
    )
    assert feature_map().shape == bundle.manifest.outputs[0].spec.shape


@pytest.mark.parametrize("rows", [4096, 4099, 4111, 4099 * 2])
def test_a_merge_that_changes_the_order_of_rows_is_run(rows: int) -> None:
    sub = network([(1, 2, rows), (1, 2, rows)], (1, 4, rows)).subgraphs[-1]

    class Turning(Joining):
        def run(self, inputs: Mapping[str, np.ndarray], /) -> Sequence[np.ndarray]:
            return [super().run(inputs)[0][:, [1, 0, 3, 2]]]

    assert is_plain_concat(sub, Joining(1), 1)
    assert not is_plain_concat(sub, Turning(1), 1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_merge_that_clips_or_rounds_far_out_is_run(dtype: str) -> None:
    least, most = ((-1e9, 1e9), (-2000.0, 2000.0))[dtype == "float16"]
    sub = network([(1, 3, 4, 4), (1, 5, 4, 4)], (1, 8, 4, 4)).subgraphs[-1]
    sub = replace(
        sub,
        inputs=tuple(port(p.name, p.spec.shape, dtype) for p in sub.inputs),
        outputs=(port("end", (1, 8, 4, 4), dtype),),
    )

    class Clipping(Joining):
        def run(self, inputs: Mapping[str, np.ndarray], /) -> Sequence[np.ndarray]:
            return [np.clip(super().run(inputs)[0], least, most)]

    class Rounding(Joining):
        def run(self, inputs: Mapping[str, np.ndarray], /) -> Sequence[np.ndarray]:
            return [
                np.where(
                    np.abs(whole := super().run(inputs)[0]) < 1e-3, np.array(0, whole.dtype), whole
                )
            ]

    assert is_plain_concat(sub, Joining(1), 1)
    assert not is_plain_concat(sub, Clipping(1), 1)
    assert not is_plain_concat(sub, Rounding(1), 1)
