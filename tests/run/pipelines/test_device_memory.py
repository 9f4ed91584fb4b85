"""A backend with its own memory: items under way, a copy that fails, what is kept."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.pipeline_bundles import MAP, chain

from nnstretch.bundle.bundle import Bundle
from nnstretch.errors import StageFailed
from nnstretch.run import loaded_network
from nnstretch.run.pipelines.pipeline import Pipeline

X = np.ones(MAP.shape, np.float32)


class Device:
    """Memory of its own: what is held is marked, numbers are doubled, and it notes who is in it."""

    inside: list[str]
    meet: Callable[[str, int], None]

    def run(self, inputs: Mapping[str, np.ndarray], /) -> Sequence[np.ndarray]:
        raise AssertionError("copies are apart")

    def upload(self, inputs: Mapping[str, np.ndarray], /) -> object:
        (value,) = inputs.values()
        self._in("copy in", value)
        return ("on the device", value.copy())

    def execute(self, held: object, /) -> object:
        assert isinstance(held, tuple)
        self._in("compute", held[1])
        return ("computed", held[1] * 2)

    def download(self, held: object, /) -> Sequence[np.ndarray]:
        assert isinstance(held, tuple)
        self._in("copy out", held[1] / 2)
        return [held[1]]

    def _in(self, what: str, value: Any) -> None:
        type(self).inside.append(what)
        type(self).meet(what, int(value.flat[0]))


def on_a_device(monkeypatch: pytest.MonkeyPatch, meet: Callable[[str, int], None]) -> Bundle:
    """Two stages, the second on a device."""
    Device.inside, Device.meet = [], staticmethod(meet)
    bundle = chain(2)
    (first, second), plain = bundle.manifest.subgraphs, loaded_network.load_backend
    moved = replace(
        bundle,
        manifest=replace(bundle.manifest, subgraphs=(first, replace(second, processor="gpu"))),
    )
    monkeypatch.setattr(
        loaded_network,
        "load_backend",
        lambda name, *rest: Device() if name == "torch:cuda" else plain(name, *rest),
    )
    return moved


def test_three_items_are_in_one_device_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is copied in, one is computed, one is copied out.

    Each waits until the other two are there.
    """
    barrier = threading.Barrier(3)

    def meet(what: str, item: int) -> None:
        if item == {"copy in": 7, "compute": 6, "copy out": 5}[what]:
            barrier.wait(20)

    bundle = on_a_device(monkeypatch, meet)
    with Pipeline(bundle, backend="gpu=torch:cuda", bind=False) as pipeline:
        assert [one.stage for one in pipeline.statistics()] == [
            "m0",
            "m1 copy in",
            "m1",
            "m1 copy out",
        ]
        results = list(pipeline.stream(X * n for n in range(12)))
    assert all(np.array_equal(result.value(), (X * n + 1) * 2) for n, result in enumerate(results))
    assert not barrier.broken
    assert sorted(Device.inside) == sorted(["copy in", "compute", "copy out"] * 12)


@pytest.mark.parametrize(
    ("where", "said"),
    [("copy in", "stage m1, copy in"), ("compute", "stage m1"), ("copy out", "stage m1, copy out")],
)
def test_a_copy_that_fails_fails_its_item_and_says_so(
    monkeypatch: pytest.MonkeyPatch, where: str, said: str
) -> None:
    def meet(what: str, item: int) -> None:
        if (what, item) == (where, 3):
            raise OSError("the bus is gone")

    bundle = on_a_device(monkeypatch, meet)
    with Pipeline(bundle, backend="gpu=torch:cuda", bind=False) as pipeline:
        results = list(pipeline.stream(X * n for n in range(5)))
    assert [result.error is None for result in results] == [True, True, False, True, True]
    with pytest.raises(
        StageFailed, match=rf"^item 2 failed, {said}, OSError: the bus is gone$"
    ) as failed:
        results[2].value()
    assert (failed.value.stage, failed.value.item) == ("m1", 2)


def test_what_failed_leaves_the_device_before_its_result_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[weakref.ref[Any]] = []

    class Memory:
        def __init__(self, value: Any) -> None:
            self.value = value

    def meet(what: str, _item: int) -> None:
        if what == "compute":
            raise OSError("out of order")

    bundle = on_a_device(monkeypatch, meet)

    def upload(self: Device, inputs: Mapping[str, np.ndarray], /) -> object:
        memory = Memory(next(iter(inputs.values())))
        held.append(weakref.ref(memory))
        return ("on the device", memory.value, memory)

    monkeypatch.setattr(Device, "upload", upload)
    with Pipeline(bundle, backend="gpu=torch:cuda", bind=False) as pipeline:
        for n in range(4):
            pipeline.push(X * n)
        results = [pipeline.get(20) for _ in range(4)]
    assert all(result.error is not None for result in results)
    for result in results:
        assert result.error is not None
        assert result.error.__cause__ is not None
        result.error.__cause__.__traceback__ = (
            None  # it holds the frames in which the item was computed
        )
    assert not [one for one in held if one() is not None]
