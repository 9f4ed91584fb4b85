"""Every meter keeps one set of promises; what it builds computes what the kernel says."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import isfinite, prod

import numpy as np
import pytest
import torch
from torch import nn

from nnstretch.errors import BadInput, UnsupportedOp
from nnstretch.kernel import Kernel
from nnstretch.profile.backends.meter import Meter
from nnstretch.profile.backends.torch_meter import TorchMeter, repeats_of
from nnstretch.profile.interleaved_timing import LEAST_US, WARM_UP, time_interleaved
from nnstretch.profile.kernel_models.torch_chains import build, shapes_of
from nnstretch.profile.sampling.kernel_generator import load_prior
from nnstretch.profile.sampling.kernel_spec import KernelSpec, kernel_of_spec

CONV = kernel_of_spec(
    KernelSpec("conv", "conv2d", ((1, 8, 6, 6),), (1, 16, 3, 3), 3, 2), "conv", ("relu",)
)
SUM = kernel_of_spec(
    KernelSpec("conv", "conv2d", ((1, 16, 3, 3),), (1, 16, 3, 3), 1), "sum", ("add", "relu")
)
DEPTHWISE = kernel_of_spec(
    KernelSpec("dwconv", "conv2d", ((1, 8, 6, 6),), (1, 8, 6, 6), 3, 1, 8), "depthwise"
)
DEPTHWISE_BEHIND = kernel_of_spec(
    KernelSpec("dwconv", "conv2d", ((1, 16, 3, 3),), (1, 16, 3, 3), 3, 1, 16), "behind"
)
GROUPED = kernel_of_spec(
    KernelSpec("gconv", "conv2d", ((1, 8, 6, 6),), (1, 8, 6, 6), 3, 1, 2), "grouped", ("hardswish",)
)
KERNELS = (
    CONV,
    SUM,
    DEPTHWISE,
    GROUPED,
    kernel_of_spec(KernelSpec("linear", "linear", ((1, 8),), (1, 4)), "linear"),
    kernel_of_spec(KernelSpec("linear", "linear", ((1, 5, 8),), (1, 5, 4)), "tokens", ("gelu",)),
    kernel_of_spec(KernelSpec("pool", "max_pool2d", ((1, 8, 7, 7),), (1, 8, 4, 4), 3, 2), "pool"),
    kernel_of_spec(KernelSpec("gap", "mean", ((1, 8, 6, 6),), (1, 8, 1, 1)), "gap"),
    kernel_of_spec(KernelSpec("add", "add", ((1, 8, 6, 6), (1, 8, 6, 6)), (1, 8, 6, 6)), "add"),
    kernel_of_spec(KernelSpec("mul", "mul", ((1, 8, 6, 6), (1, 8, 1, 1)), (1, 8, 6, 6)), "mul"),
    kernel_of_spec(
        KernelSpec("concat", "cat", ((1, 8, 6, 6), (1, 4, 6, 6)), (1, 12, 6, 6)), "concat"
    ),
    kernel_of_spec(KernelSpec("activation", "sigmoid", ((1, 8, 6, 6),), (1, 8, 6, 6)), "sigmoid"),
    kernel_of_spec(KernelSpec("norm", "layer_norm", ((1, 5, 8),), (1, 5, 8)), "norm"),
    kernel_of_spec(KernelSpec("softmax", "softmax", ((1, 2, 5, 5),), (1, 2, 5, 5)), "softmax"),
    kernel_of_spec(
        KernelSpec("matmul", "matmul", ((1, 2, 5, 4), (1, 2, 4, 5)), (1, 2, 5, 5)), "matmul"
    ),
    kernel_of_spec(KernelSpec("reshape", "transpose", ((1, 5, 8),), (1, 8, 5)), "transpose"),
)
UNKNOWN = kernel_of_spec(KernelSpec("wavelet", "wavelet", ((1, 8),), (1, 8)), "unknown")
WRONG = kernel_of_spec(
    KernelSpec("matmul", "matmul", ((1, 2, 5, 4), (1, 2, 3, 5)), (1, 2, 5, 5)), "wrong"
)
ROUNDS = 3
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def good(times_us: tuple[float, ...]) -> bool:
    return len(times_us) == ROUNDS and all(isfinite(us) and us > 0 for us in times_us)


@cache
def openvino_meter() -> Meter:
    pytest.importorskip("openvino")
    from nnstretch.profile.backends.openvino_meter import OpenVINOMeter

    return OpenVINOMeter()


class MeterPromises:
    """What a meter must do, whatever it runs; a subclass gives the meter."""

    @pytest.fixture
    def meter(self) -> Meter:
        raise NotImplementedError

    @pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
    def test_every_round_of_every_kernel_takes_time(self, meter: Meter, kernel: Kernel) -> None:
        assert good(*meter.measure([(kernel,)], ROUNDS))

    def test_chains_take_turns_and_what_is_refused_costs_the_others_nothing(
        self, meter: Meter
    ) -> None:
        chains = [(CONV,), (UNKNOWN,), (CONV, SUM), (WRONG,), (DEPTHWISE, GROUPED)]
        found = meter.measure(chains, ROUNDS)
        assert [good(times) for times in found] == [True, False, True, False, True]
        assert found[1] == found[3] == ()

    def test_nothing_to_measure_is_nothing_measured(self, meter: Meter) -> None:
        assert meter.measure([], ROUNDS) == []
        assert meter.measure([(UNKNOWN,)], ROUNDS) == [()]

    def test_a_network_runs_and_stays_as_it_was(self, meter: Meter) -> None:
        module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
        before = {name: value.clone() for name, value in module.state_dict().items()}
        run = meter.network(module, torch.zeros(1, 3, 8, 8))
        run()
        run()
        assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())

    def test_launches_are_those_of_the_runtime(self, meter: Meter) -> None:
        alone, both, refused = (
            meter.launches(chain) for chain in ((CONV,), (CONV, DEPTHWISE_BEHIND), (UNKNOWN,))
        )
        assert alone is not None
        assert alone == (2 if meter.rules else 1)
        assert both == alone + 1
        assert refused is None

    def test_a_call_takes_time_of_its_own(self, meter: Meter) -> None:
        assert isfinite(meter.call_us)
        assert meter.call_us > 0

    def test_it_says_what_it_is(self, meter: Meter) -> None:
        assert meter.dtype == "float32"
        assert meter.version.startswith(f"{meter.name} ")
        assert meter.blocked() is None


class TestTorch(MeterPromises):
    @pytest.fixture(params=DEVICES)
    def meter(self, request: pytest.FixtureRequest) -> Meter:
        return TorchMeter(request.param)

    def test_threads_are_put_back(self, meter: Meter) -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            meter.measure([(CONV,)], 1)
            meter.network(nn.ReLU(), torch.zeros(1))()
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(before)


class TestOpenVino(MeterPromises):
    @pytest.fixture
    def meter(self) -> Meter:
        return openvino_meter()

    def test_it_refuses_a_device_that_is_not_there(self) -> None:
        openvino_meter()
        from nnstretch.profile.backends.openvino_meter import OpenVINOMeter

        with pytest.raises(BadInput, match=r"no device 'ABACUS'.*it finds CPU"):
            OpenVINOMeter("ABACUS")

    def test_copies_around_a_lone_kernel_are_not_counted(self, meter: Meter) -> None:
        """Of a 1x1 convolution fed as PyTorch keeps maps, copies are part of the records, and only
        its own launch is left.
        """
        from nnstretch.profile.backends.openvino_meter import (
            COPIES,
            OpenVINOMeter,
            share_memory,
        )
        from nnstretch.profile.kernel_models.onnx_chains import build_chain

        assert isinstance(meter, OpenVINOMeter)
        kernel = kernel_of_spec(
            KernelSpec("conv", "conv2d", ((1, 64, 28, 28),), (1, 64, 28, 28)), "plain"
        )
        model = meter.load(build_chain((kernel,)), False, COPIES)
        share_memory([model])
        model.feed()
        model.infer()
        executed = [
            launch
            for launch in model.request.profiling_info
            if launch.status == launch.Status.EXECUTED
        ]
        own = [launch for launch in executed if launch.node_type not in COPIES]
        assert [launch.node_name for launch in model.launched()] == [
            launch.node_name for launch in own
        ]
        assert "Convolution" in {launch.node_type for launch in own}
        assert len(own) < len(executed)
        assert model.recorded_us() > 0

    @pytest.mark.parametrize(
        ("recipe", "launch"),
        [
            (KernelSpec("concat", "cat", ((1, 8, 6, 6), (1, 8, 6, 6)), (1, 16, 6, 6)), "Concat"),
            (KernelSpec("reshape", "chunk", ((1, 16, 6, 6),), (1, 8, 6, 6)), "Split"),
            (KernelSpec("pool", "max_pool2d", ((1, 8, 7, 7),), (1, 8, 4, 4), 3, 2), "MaxPool"),
        ],
    )
    def test_maps_come_as_a_convolution_writes_them(
        self, meter: Meter, recipe: KernelSpec, launch: str
    ) -> None:
        """Alone, OpenVINO would move nothing for the first two."""
        from nnstretch.profile.backends.openvino_meter import CARRIER, OpenVINOMeter, share_memory

        assert isinstance(meter, OpenVINOMeter)
        loaded = meter.load_chain((kernel_of_spec(recipe, "moved"),))
        assert loaded is not None
        share_memory([loaded])
        loaded.infer()
        ran = {
            one.node_type
            for one in loaded.request.profiling_info
            if one.status == one.Status.EXECUTED
        }
        assert {launch, CARRIER} <= ran
        assert CARRIER in loaded.copies
        assert launch not in loaded.copies

    def test_records_are_spread_over_the_rounds(
        self, meter: Meter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from nnstretch.profile.backends.openvino_meter import LoadedOpenVINOModel, OpenVINOMeter

        assert isinstance(meter, OpenVINOMeter)
        loaded = meter.load_chain((CONV,))
        assert loaded is not None
        loaded.warm_us = 10.0
        monkeypatch.setattr(LoadedOpenVINOModel, "recorded_us", lambda self: 40.0)
        assert loaded.own_us((40.0, 20.0)) == pytest.approx((20.0, 10.0))
        assert loaded.own_us((10.0, 10.0)) == (10.0, 10.0)
        assert loaded.own_us(()) == ()

    def test_a_meters_model_computes_what_pytorch_does(self, meter: Meter) -> None:
        from nnstretch.profile.backends.openvino_meter import OpenVINOMeter, share_memory

        assert isinstance(meter, OpenVINOMeter)
        loaded = meter.load_chain(
            (
                kernel_of_spec(
                    KernelSpec("mul", "mul", ((1, 8, 6, 5), (1, 8, 1, 1)), (1, 8, 6, 5)), "mul"
                ),
            )
        )
        assert loaded is not None
        share_memory([loaded])
        loaded.feed()
        loaded.infer()
        assert [data.shape for data in loaded.fed] == [(1, 6, 5, 8), (1, 1, 1, 8)]
        np.testing.assert_allclose(loaded.outputs[0], loaded.fed[0] * loaded.fed[1], rtol=1e-6)


OPERATORS = [
    (recipe.kind, recipe.op) for recipes in load_prior().recipes.values() for recipe in recipes
]


@pytest.mark.parametrize(("kind", "op"), sorted(set(OPERATORS)))
def test_a_built_model_writes_as_many_elements_as_its_kernel(kind: str, op: str) -> None:
    """The smallest of each operator of the zoo."""
    recipe = min(
        (r for r in load_prior().recipes[kind] if r.op == op),
        key=lambda r: sum(map(prod, r.shapes_in)) * r.kernel,
    )
    kernel = kernel_of_spec(recipe, "k")
    with torch.inference_mode():
        value = build((kernel,))(*(torch.randn(shape) for shape in shapes_of((kernel,))))
    assert value.numel() == prod(kernel.shape_out)


def test_a_chain_computes_what_its_layers_compute() -> None:
    chain = build((CONV, SUM))
    first, second = chain.weighted
    x, residual = torch.randn(1, 8, 6, 6), torch.randn(1, 16, 3, 3)
    assert shapes_of((CONV, SUM)) == [(1, 8, 6, 6), (1, 16, 3, 3)]
    with torch.inference_mode():
        torch.testing.assert_close(
            chain(x, residual), torch.relu(second(torch.relu(first(x))) + residual)
        )


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (UNKNOWN, "kind 'wavelet' .*kernel unknown, known are conv"),
        (
            kernel_of_spec(KernelSpec("activation", "snake", ((1, 8),), (1, 8)), "a"),
            "operator 'snake' has no rule",
        ),
        (
            kernel_of_spec(KernelSpec("conv", "conv1d", ((1, 8, 9),), (1, 8, 9)), "c"),
            "must be over maps",
        ),
        (
            kernel_of_spec(KernelSpec("reshape", "fold", ((1, 8, 9),), (1, 8, 9)), "r"),
            "kernel r, known are",
        ),
        (
            kernel_of_spec(KernelSpec("norm", "group_norm", ((1, 8, 3, 3),), (1, 8, 3, 3)), "n"),
            "kernel n, known are batch_norm",
        ),
    ],
)
def test_an_operator_without_eager_form_is_refused_by_name(kernel: Kernel, why: str) -> None:
    with pytest.raises(UnsupportedOp, match=why):
        build((kernel,))


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cpus", ""])
def test_torch_refuses_devices_of_other_kinds(device: str) -> None:
    with pytest.raises(BadInput, match="it must be cpu, cuda or cuda:INDEX"):
        TorchMeter(device)


def test_torch_refuses_a_cuda_device_that_is_not_there() -> None:
    with pytest.raises(
        BadInput,
        match=f"no CUDA device, 'cuda:99' asked for, torch .* finds {torch.cuda.device_count()}",
    ):
        TorchMeter("cuda:99")


@pytest.mark.parametrize(
    ("once_us", "repeats"), [(250.0, 1), (100.0, 1), (30.0, 4), (0.5, 64), (0.0, 64)]
)
def test_what_is_tiny_on_a_card_is_recorded_in_a_row(once_us: float, repeats: int) -> None:
    assert repeats_of(once_us) == repeats


def test_turns_are_taken_and_inputs_written_before_each_run() -> None:
    log: list[str] = []

    def says(what: str) -> Callable[[], None]:
        return lambda: log.append(what)

    def clock_us(run: Callable[[], object]) -> float:
        run()
        return 7.0

    found = time_interleaved(
        [says("a"), None, says("b")], [says("A"), says("X"), says("B")], 2, 3.0, clock_us
    )
    assert log == ["A", "a", "B", "b"] * (WARM_UP + 2)
    assert found == [(4.0, 4.0), (), (4.0, 4.0)]


def test_a_kernel_faster_than_the_harness_is_not_free() -> None:
    assert time_interleaved([lambda: None], [lambda: None], 2, 1e9) == [(LEAST_US, LEAST_US)]


def test_a_disturbed_run_is_not_subtracted_from_every_kernel() -> None:
    from nnstretch.profile.backends.onnxruntime_records import mean_launch_us

    quiet = [2.0] * 60 * 40
    disturbed = [*quiet, *([2.0] * 59 + [9000.0]) * 10]
    assert mean_launch_us(quiet, 60) == 2.0
    assert mean_launch_us(disturbed, 60) == 2.0
