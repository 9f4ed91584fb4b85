"""CUDA on a real card: numbers, copies beside kernels, threads, memory. Skipped where none is."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from run.test_backend_suite import onnx_case
from run.test_torch_backend import assert_numbers_of_onnx_runtime
from support.bundles import branched_bundle, image
from support.pipeline_bundles import both, chain, first_of, full, reference_bundle

from nnstretch.bundle.bundle import Bundle
from nnstretch.errors import BadInput, UnknownName
from nnstretch.run import Session
from nnstretch.run.loaded_network import LoadedNetwork
from nnstretch.run.pipelines.pipeline import Pipeline
from nnstretch.run.server import Server
from nnstretch.testing.backend_suite import BackendCase, DeviceBackendSuite

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA card")

from nnstretch.run.backends.torch_cuda import CudaGraphSession, TorchCuda  # noqa: E402


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return branched_bundle(segments=3, side=32, channels=64, depth=3, predicted=False)


class TestCudaCard(DeviceBackendSuite):
    @pytest.fixture
    def case(self) -> BackendCase:
        return onnx_case("torch:cuda")


@pytest.mark.parametrize("choice", ["torch:cuda", "torch:cuda:0", "onnxruntime,dsp=torch:cuda"])
def test_a_session_gives_the_numbers_of_onnx_runtime(bundle: Bundle, choice: str) -> None:
    assert_numbers_of_onnx_runtime(bundle, choice, 20)


def test_branches_on_streams_give_the_numbers_of_onnx_runtime_each_time(bundle: Bundle) -> None:
    request, plain = CudaGraphSession(bundle), LoadedNetwork(bundle)
    for seed in range(100):
        x = image(bundle, seed % 7)
        np.testing.assert_allclose(
            next(iter(request.run({"image": x}).values())), plain.run_sequential(x), atol=1e-4
        )


def test_a_pipeline_on_the_card_keeps_order_and_numbers() -> None:
    with Pipeline(chain(4), backend="torch:cuda") as pipeline:
        values = [result.value() for result in pipeline.stream(full(k) for k in range(200))]
    assert [first_of(value) for value in values] == [k + 10.0 for k in range(200)]


def test_a_pipeline_of_processor_and_card_takes_new_weights() -> None:
    with (
        Pipeline(reference_bundle(), backend="onnxruntime,cpu=torch:cuda") as pipeline,
        Pipeline(reference_bundle()) as plain,
    ):
        for value in (1, 11, 5):
            for either in (pipeline, plain):
                either.set_parameters("param_0", {"one": np.array([value], np.float32)})
            results = [either.run(both(3)) for either in (pipeline, plain)]
            np.testing.assert_allclose(results[0], results[1], atol=1e-4)


def test_a_server_on_the_card_answers_many_at_once(bundle: Bundle) -> None:
    plain = LoadedNetwork(bundle)
    wanted = [plain.run_sequential(image(bundle, seed)) for seed in range(8)]
    with Server(bundle, backend="torch:cuda") as server:
        answers = [server.submit(image(bundle, n % 8)) for n in range(100)]
        for number, answer in enumerate(answers):
            np.testing.assert_allclose(answer.result(60), wanted[number % 8], atol=1e-4)


def test_sessions_are_recorded_while_others_compute(bundle: Bundle) -> None:
    """A recording forbids others to allocate, unless it is told to mind its own thread only."""
    stop, plain = threading.Event(), LoadedNetwork(bundle)
    busy = LoadedNetwork(bundle, "torch:cuda")
    wanted = plain.run_sequential(image(bundle, 1))

    def compute() -> int:
        runs = 0
        while not stop.is_set():
            np.testing.assert_allclose(busy.run_sequential(image(bundle, 1)), wanted, atol=1e-4)
            runs += 1
        return runs

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(compute)
        try:
            for _ in range(10):
                other = LoadedNetwork(bundle, "torch:cuda")
                np.testing.assert_allclose(
                    other.run_sequential(image(bundle, 1)), wanted, atol=1e-4
                )
        finally:
            stop.set()
        assert running.result(60) > 0


def test_what_is_dropped_leaves_the_card(bundle: Bundle) -> None:
    def held_bytes() -> int:
        gc.collect()
        torch.cuda.synchronize()
        return int(torch.cuda.memory_allocated())

    def once() -> None:
        CudaGraphSession(bundle).run({"image": image(bundle, 0)})
        LoadedNetwork(bundle, "torch:cuda").run_sequential(image(bundle, 0))

    once()
    before = held_bytes()
    for _ in range(10):
        once()
    assert held_bytes() <= before + (1 << 20)


def test_what_the_card_cannot_do_is_one_line(bundle: Bundle) -> None:
    count = torch.cuda.device_count()
    with pytest.raises(UnknownName, match=rf"^unknown device 'cuda:{count}', backend torch"):
        Session(bundle, clock="real", backend=f"torch:cuda:{count}")
    sub = bundle.manifest.subgraphs[0]
    device = TorchCuda(sub, bundle.files[sub.file], bundle.name)
    with pytest.raises(BadInput, match=r"^input image, expected 1x3x32x32 float32"):
        CudaGraphSession(bundle).run({"image": np.zeros((1, 3, 9, 9), np.float32)})
    assert len(device.run({"image": image(bundle, 0)})) == 1
