"""Tests that every backend passes.

Inherit the suite and give it its fixtures:

    class TestMine(BackendSuite):
        @pytest.fixture
        def case(self): return BackendCase(lambda: Mine(model), inputs, outputs, reference)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from nnstretch.bundle.manifest import Port
from nnstretch.errors import NnstretchError
from nnstretch.protocols import Backend, BindableBackend, DeviceBackend

Arrays = Mapping[str, np.ndarray]
SEEDS = range(3)
THREADS = 4


@dataclass(frozen=True, slots=True)
class BackendCase:
    """One sub-graph: how a backend loads it, and what it should compute."""

    load: Callable[[], Backend]
    """Loads the sub-graph anew; every call returns a backend that shares nothing with others."""
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    reference: Callable[[Arrays], Sequence[np.ndarray]]
    """Computes the outputs, in their order, with numpy or another runtime."""
    tolerance: float = 1e-4
    """Largest absolute difference from the reference; steps, where outputs are integers."""

    def values(self, seed: int) -> dict[str, np.ndarray]:
        """Return random inputs: normal floats, integers of the whole range."""
        generator = np.random.default_rng(seed)
        return {port.name: random_array(port, generator) for port in self.inputs}


def random_array(port: Port, generator: np.random.Generator) -> np.ndarray:
    """Return random numbers of a port's shape and type."""
    dtype = np.dtype(port.spec.dtype)
    if dtype.kind == "b":
        return np.asarray(generator.random(port.spec.shape) < 0.5)
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return generator.integers(bounds.min, bounds.max, port.spec.shape, dtype, endpoint=True)
    return generator.standard_normal(port.spec.shape).astype(dtype)


def assert_same(results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Assert that arrays are equal to the last bit."""
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, wanted)


def copies(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return copies of arrays, which a later run cannot reach."""
    return [array.copy() for array in arrays]


class BackendSuite:
    """Tests over one fixture: a `case` with a sub-graph and its reference."""

    def test_results_are_those_of_the_reference(self, case: BackendCase) -> None:
        """Check numbers within the tolerance of the case."""
        backend = case.load()
        for seed in SEEDS:
            values = case.values(seed)
            pairs = zip(backend.run(values), case.reference(values), strict=True)
            for result, expected in pairs:
                wide = np.asarray(result, np.float64)
                np.testing.assert_allclose(wide, expected, rtol=0, atol=case.tolerance)

    def test_results_have_the_shapes_and_types_of_the_outputs(self, case: BackendCase) -> None:
        """Check order, shape and type of what a run returns."""
        results = case.load().run(case.values(0))
        forms = [(result.shape, result.dtype.name) for result in results]
        assert forms == [(port.spec.shape, port.spec.dtype) for port in case.outputs]

    def test_equal_inputs_give_equal_bits(self, case: BackendCase) -> None:
        """Check that neither earlier runs nor a second loading change a bit."""
        first, second = case.load(), case.load()
        expected = copies(first.run(case.values(0)))
        first.run(case.values(1))
        assert_same(first.run(case.values(0)), expected)
        assert_same(second.run(case.values(0)), expected)

    def test_a_run_leaves_its_inputs_alone(self, case: BackendCase) -> None:
        """Check that inputs are read only."""
        values = case.values(0)
        case.load().run(values)
        assert_same(list(values.values()), list(case.values(0).values()))

    def test_a_later_run_leaves_earlier_results_alone(self, case: BackendCase) -> None:
        """Check that a result belongs to its caller, also when inputs change afterwards."""
        backend, values = case.load(), case.values(0)
        results = backend.run(values)
        kept = copies(results)
        for array in values.values():
            array[...] = 0
        backend.run(case.values(1))
        assert_same(results, kept)

    def test_a_caller_may_write_on_results(self, case: BackendCase) -> None:
        """Check that results can be written on, and that no later run reads them."""
        backend, values = case.load(), case.values(0)
        results = backend.run(values)
        kept = copies(results)
        for result in results:
            assert result.flags.writeable
            result[...] = 0
        assert_same(backend.run(values), kept)

    def test_threads_that_share_a_backend_get_their_own_results(self, case: BackendCase) -> None:
        """Check that concurrent runs do not mix."""
        backend = case.load()
        seeds = list(range(THREADS)) * 5
        expected = [copies(case.load().run(case.values(seed))) for seed in seeds[:THREADS]]
        with ThreadPoolExecutor(THREADS) as pool:
            results = list(pool.map(lambda seed: backend.run(case.values(seed)), seeds))
        for seed, result in zip(seeds, results, strict=True):
            assert_same(result, expected[seed])

    def test_a_missing_input_is_refused_in_one_line(self, case: BackendCase) -> None:
        """Check that an error of the runtime becomes one of nnstretch's, and the backend stays."""
        backend, values = case.load(), case.values(0)
        name = case.inputs[0].name
        incomplete = {key: array for key, array in values.items() if key != name}
        with pytest.raises(NnstretchError) as refusal:
            backend.run(incomplete)
        assert "\n" not in str(refusal.value)
        assert_same(backend.run(values), case.load().run(values))


class BindableBackendSuite(BackendSuite):
    """Tests of a backend that also has `bind`."""

    def test_a_bound_call_fills_its_memory_as_often_as_it_is_called(
        self, case: BackendCase
    ) -> None:
        """Check the bits that a bound call writes, for inputs that change in place."""
        backend, reads = case.load(), case.values(0)
        writes = [np.empty(port.spec.shape, port.spec.dtype) for port in case.outputs]
        call = self.bound(backend, reads, writes)
        for seed in SEEDS:
            for name, array in case.values(seed).items():
                reads[name][...] = array
            call()
            assert_same(writes, backend.run(case.values(seed)))

    @pytest.mark.parametrize("axis", [1, -1])
    def test_a_bound_call_leaves_the_gaps_in_its_memory_alone(
        self, case: BackendCase, axis: int
    ) -> None:
        """Check outputs that are parts of larger arrays, cut along an axis that they have."""
        backend, reads = case.load(), case.values(0)
        whole = [larger_array(port, axis) for port in case.outputs]
        before = copies(whole)
        parts = [middle(array, port, axis) for array, port in zip(whole, case.outputs, strict=True)]
        self.bound(backend, reads, parts)()
        expected = backend.run(reads)
        assert_same(parts, expected)
        for array, port, results in zip(before, case.outputs, expected, strict=True):
            middle(array, port, axis)[...] = results
        assert_same(whole, before)

    def test_two_bindings_are_independent(self, case: BackendCase) -> None:
        """Check that a call of one binding does not touch the memory of another."""
        backend = case.load()
        writes = []
        for seed in (0, 1):
            arrays = [np.empty(port.spec.shape, port.spec.dtype) for port in case.outputs]
            self.bound(backend, case.values(seed), arrays)()
            writes.append(arrays)
        for seed in (0, 1):
            assert_same(writes[seed], backend.run(case.values(seed)))

    def bound(
        self, backend: Backend, reads: Arrays, writes: Sequence[np.ndarray]
    ) -> Callable[[], object]:
        """Return a bound call of a backend that is bindable."""
        assert isinstance(backend, BindableBackend)
        return backend.bind(reads, writes)


def larger_array(port: Port, axis: int) -> np.ndarray:
    """Return sevens in the shape of a port with three more along an axis, where it has that one."""
    shape = list(port.spec.shape)
    if has_axis(port, axis):
        shape[axis] += 3
    return np.full(shape, 7, port.spec.dtype)


def middle(array: np.ndarray, port: Port, axis: int) -> np.ndarray:
    """Return the part of a larger array that begins at 1 along an axis and has a port's shape."""
    if not has_axis(port, axis):
        return array
    return np.moveaxis(np.moveaxis(array, axis, 0)[1 : 1 + port.spec.shape[axis]], 0, axis)


def has_axis(port: Port, axis: int) -> bool:
    """Return whether the tensor of a port has an axis, counted from the first or the last."""
    rank = len(port.spec.shape)
    return -rank <= axis < rank


class DeviceBackendSuite(BackendSuite):
    """Tests of a backend that also has `upload`, `execute` and `download`."""

    def test_items_on_the_device_keep_apart(self, case: BackendCase) -> None:
        """Check three items that are in the backend at once, each in another step."""
        backend = case.load()
        assert isinstance(backend, DeviceBackend)
        items = [case.values(seed) for seed in SEEDS]
        uploads = [backend.upload(values) for values in items]
        for values in items:
            for array in values.values():
                array[...] = 0
        outputs = [backend.execute(tensors) for tensors in uploads]
        results = [backend.download(tensors) for tensors in outputs]
        for seed, result in zip(SEEDS, results, strict=True):
            assert_same(result, backend.run(case.values(seed)))
