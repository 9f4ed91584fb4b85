"""Sub-graphs wired to memory of their own.

The same numbers, and nothing that a request got is overwritten by the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bundles import (
    branched_bundle,
    conv,
    feature_map,
    image,
    model_bytes,
    subgraph,
)

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Manifest, Port
from nnstretch.errors import BrokenFile
from nnstretch.graph import TensorSpec
from nnstretch.run import Session
from nnstretch.run.bound_memory import ALIGNED_BYTES, BoundNetwork, allocate
from nnstretch.run.loaded_network import LoadedNetwork
from nnstretch.schedule import cpu_affinity as cores
from nnstretch.schedule.cpu_affinity import IDLE_BYTES, LEAST_BYTES, LOOK_S, MOST_BYTES, spin_buffer


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return branched_bundle(segments=3, predicted=False)


def in_order(network: LoadedNetwork, bound_session: BoundNetwork, x: np.ndarray) -> np.ndarray:
    bound_session.enter(network.inputs(x))
    for sub in network.manifest.subgraphs:
        network.compute(sub.name, bound_session)
    (found,) = bound_session.results().values()
    return found


def test_bound_calls_give_exactly_the_numbers_of_single_runs(
    bundle: Bundle,
) -> None:
    network = LoadedNetwork(bundle)
    bound_session, images = network.bound_session(), [image(bundle, seed) for seed in range(4)]
    found = [in_order(network, bound_session, x) for x in images]
    assert all(
        np.array_equal(one, network.run_sequential(x)) for one, x in zip(found, images, strict=True)
    )


def test_a_session_keeps_what_it_gave(bundle: Bundle) -> None:
    images = [image(bundle, seed) for seed in range(3)]
    with Session(bundle, clock="real") as session:
        found = [session.run(x, raw=True) for x in images]
        assert all(
            np.array_equal(one, session.network.run_sequential(x))
            for one, x in zip(found, images, strict=True)
        )
        assert not np.array_equal(found[0], found[1])


def test_a_session_leaves_its_inputs_alone(bundle: Bundle) -> None:
    x = image(bundle)
    before = x.copy()
    with Session(bundle, clock="real") as session:
        values = session.network.inputs(x)
        session.compute(values)
        assert values.keys() == {"image", "s3.merged"}
    assert np.array_equal(x, before)


def test_siblings_do_not_share_memory(bundle: Bundle) -> None:
    network = LoadedNetwork(bundle)
    one, other, x, y = (
        network.bound_session(),
        network.bound_session(),
        image(bundle, 1),
        image(bundle, 2),
    )
    expected = in_order(network, one, x)
    in_order(network, other, y)
    assert np.array_equal(one.results()["s3.merged"], expected)


class Doubling:
    """A backend that knows nothing of wires."""

    def run(self, inputs: Mapping[str, np.ndarray], /) -> Sequence[np.ndarray]:
        return [2 * array for array in inputs.values()]


def test_a_backend_that_cannot_be_bound_is_copied_to_and_from() -> None:
    ports = [Port(name, feature_map()) for name in "abc"]
    subs = [subgraph(f"s{n}", "cpu", b"", [ports[n]], [ports[n + 1]]) for n in range(2)]
    bound_session = BoundNetwork(
        Manifest("m", None, (ports[0],), (ports[2],), tuple(subs), 0.0),
        {"s0": Doubling(), "s1": Doubling()},
    )
    for value in (1.0, 3.0):
        bound_session.enter({"a": np.full(ports[0].spec.shape, value, np.float32)})
        for call in bound_session.calls.values():
            call()
        assert np.array_equal(
            bound_session.results()["c"], np.full(ports[0].spec.shape, 4 * value, np.float32)
        )


def test_an_output_of_another_size_is_told_in_one_line() -> None:
    """How many numbers an operator writes may depend on what it reads."""
    from onnx import TensorProto, helper

    read, end = Port("a", TensorSpec((1, 4))), Port("end", TensorSpec((2, 3)))
    nodes = [
        helper.make_node("NonZero", ["a"], ["places"]),
        helper.make_node("Cast", ["places"], ["end"], to=TensorProto.FLOAT),
    ]
    data = model_bytes(nodes, [read], [end], {})
    sub = subgraph("count", "cpu", data, [read], [end])
    network = LoadedNetwork(
        Bundle(Manifest("m", None, (read,), (end,), (sub,), 0.0), {"count.onnx": data})
    )
    bound_session = network.bound_session()
    bound_session.enter({"a": np.array([[1, 1, 1, 0]], np.float32)})
    bound_session.calls["count"]()
    assert bound_session.results()["end"].tolist() == [[0, 0, 0], [0, 1, 2]]
    bound_session.enter({"a": np.ones((1, 4), np.float32)})
    with pytest.raises(BrokenFile, match=r"member count\.onnx, ONNX Runtime cannot run it"):
        bound_session.calls["count"]()


def test_an_input_that_leaves_again_is_an_output() -> None:
    a, b = Port("a", feature_map()), Port("b", feature_map())
    data = conv(a, b, seed=0)
    manifest = Manifest("m", None, (a,), (a, b), (subgraph("s", "cpu", data, [a], [b]),), 0.0)
    bound_session = BoundNetwork(manifest, {"s": Doubling()})
    x = np.ones(a.spec.shape, np.float32)
    bound_session.enter({"a": x})
    bound_session.calls["s"]()
    assert np.array_equal(bound_session.results()["a"], x)


@given(
    st.lists(st.integers(0, 5), max_size=4), st.sampled_from(["float32", "int8", "int64", "bool"])
)
def test_memory_begins_at_a_line_of_the_cache(shape: list[int], dtype: str) -> None:
    port = Port("p", replace(feature_map(), shape=tuple(shape), dtype=dtype))
    found = allocate(port)
    assert (found.shape, found.dtype) == (tuple(shape), np.dtype(dtype))
    assert found.flags.c_contiguous
    assert not found.size or found.ctypes.data % ALIGNED_BYTES == 0


@pytest.mark.parametrize(
    ("checksum_s", "size_bytes"),
    [(LOOK_S, IDLE_BYTES), (LOOK_S / 4, 4 * IDLE_BYTES), (1.0, LEAST_BYTES), (1e-9, MOST_BYTES)],
)
def test_looks_are_as_long_as_they_should_be(
    checksum_s: float, size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(cores, "perf_counter", lambda: now_s[0])
    monkeypatch.setattr(cores, "crc32", lambda data: now_s.__setitem__(0, now_s[0] + checksum_s))
    assert len(spin_buffer.__wrapped__()) == size_bytes


def test_the_shortest_look_lets_go_of_the_lock() -> None:
    assert LEAST_BYTES > 5 << 10
