"""LiteRT kernels are what the converter writes for the same layer, run, and take time that
adds up.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("ai_edge_litert")

from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

from nnstretch.capture.host_process import silence_process as silent
from nnstretch.capture.torch_export import capture
from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import Kernel
from nnstretch.profile.backends.litert_meter import (
    NETWORK_BYTES,
    RULES,
    LiteRTMeter,
    copies_for_timing,
    resident_bytes,
)
from nnstretch.profile.backends.litert_network import to_tflite, with_nontrivial_weights
from nnstretch.profile.kernel_models.tflite_models import build
from nnstretch.structure.kernel_fusion import fuse_kernels

NAMES = {
    number: name
    for name, number in vars(schema.BuiltinOperator).items()
    if not name.startswith("_")
}
DTYPES = ("float32", "int8")


class Block(nn.Module):
    """Every way of padding, clamping and gating that mobile networks have."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        self.deep = nn.Sequential(
            nn.Conv2d(16, 16, 3, 2, 1, groups=16, bias=False), nn.BatchNorm2d(16), nn.SiLU()
        )
        self.grouped = nn.Sequential(
            nn.Conv2d(16, 32, (1, 3), 1, (0, 1), groups=2),
            nn.Hardswish(),
            nn.Conv2d(32, 32, 3, padding=1),
        )
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(32, 32, 1), nn.Hardsigmoid())
        self.norm = nn.Sequential(
            nn.BatchNorm2d(64), nn.ReLU(), nn.AvgPool2d(2, 2), nn.AdaptiveAvgPool2d(1)
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.grouped(self.deep(self.stem(x)))
        summed = torch.relu(wide * self.gate(wide) + wide)
        return self.head(self.norm(torch.cat([summed, wide], 1)).flatten(1))


def operators(model: bytes) -> list[str]:
    """Names in the order of execution; what only renames data left out, clamps behind a slash."""
    parsed = schema.ModelT.InitFromObj(schema.Model.GetRootAs(model, 0))
    found = []
    for operator in parsed.subgraphs[0].operators:
        name = NAMES[parsed.operatorCodes[operator.opcodeIndex].builtinCode]
        clamp = getattr(operator.builtinOptions, "fusedActivationFunction", 0)
        if name not in ("RESHAPE", "QUANTIZE"):
            found.append(f"{name}/{clamp}" if clamp else name)
    return sorted(found)


def block_kernels() -> tuple[Kernel, ...]:
    return fuse_kernels(capture(Block().eval(), torch.zeros(1, 3, 64, 64), "block"), RULES)


@pytest.fixture(scope="module")
def converted() -> bytes:
    with silent():
        return to_tflite(with_nontrivial_weights(Block()), torch.zeros(1, 3, 64, 64), "float32")


def test_kernels_are_the_operators_of_the_converted_network(converted: bytes) -> None:
    ours = sorted(
        name for kernel in block_kernels() for name in operators(build((kernel,), "float32"))
    )
    assert ours == operators(converted)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kernel_runs_and_gives_the_shape_of_the_graph(dtype: str) -> None:
    for kernel in block_kernels():
        interpreter = Interpreter(model_content=build((kernel,), dtype), num_threads=1)
        interpreter.allocate_tensors()
        interpreter.invoke()
        out = interpreter.get_output_details()[0]
        assert out["dtype"] == (np.int8 if dtype == "int8" else np.float32)
        assert np.prod(out["shape"]) == np.prod(kernel.shape_out), kernel


@pytest.mark.parametrize("size", [(14, 21), (14, 7), (21, 14)])
def test_windows_of_an_adaptive_pool_are_as_high_and_as_wide_as_they_divide(
    size: tuple[int, int],
) -> None:
    network = nn.Sequential(nn.AdaptiveAvgPool2d(7), nn.Conv2d(3, 4, 1)).eval()
    kernels = fuse_kernels(capture(network, torch.zeros(1, 3, *size), "pooled"), RULES)
    (pool,) = (kernel for kernel in kernels if kernel.op.startswith("adaptive"))
    model = build((pool,), "float32")
    assert operators(model) == ["AVERAGE_POOL_2D"]
    interpreter = Interpreter(model_content=model, num_threads=1)
    interpreter.allocate_tensors()
    x = np.random.default_rng(0).random((1, *size, 3), dtype=np.float32)
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    value = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    expected = network[0](torch.from_numpy(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    np.testing.assert_allclose(value, expected.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d((2, 1), (2, 1)),
        nn.MaxPool2d(2, (2, 1), (0, 1)),
        nn.MaxPool2d((3, 1), 1, (1, 0)),
        nn.AvgPool2d((3, 2)),
    ],
    ids=str,
)
def test_a_pool_has_the_window_and_the_strides_of_its_network(pool: nn.Module) -> None:
    image = torch.from_numpy(np.random.default_rng(0).random((1, 3, 17, 13), dtype=np.float32))
    (kernel,) = fuse_kernels(capture(pool, image, "pooled"), RULES)
    interpreter = Interpreter(model_content=build((kernel,), "float32"), num_threads=1)
    interpreter.allocate_tensors()
    fed = interpreter.get_input_details()[0]["index"]
    interpreter.set_tensor(fed, image.permute(0, 2, 3, 1).contiguous().numpy())
    interpreter.invoke()
    value = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_allclose(value, pool(image).permute(0, 2, 3, 1).numpy(), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_chain_is_the_operators_of_its_kernels(dtype: str) -> None:
    chain = block_kernels()[:3]
    assert operators(build(chain, dtype)) == sorted(
        name for kernel in chain for name in operators(build((kernel,), dtype))
    )


def test_an_unknown_kernel_is_refused_by_name_and_measures_nothing() -> None:
    known = block_kernels()[0]
    odd = replace(known, name="odd_one", kind="fft")
    with pytest.raises(UnsupportedOp, match="odd_one"):
        build((odd,), "float32")
    times = LiteRTMeter("float32").measure([(odd,), (known,)], 2)
    assert times[0] == ()
    assert len(times[1]) == 2


def test_a_kernel_is_not_chained_to_one_that_writes_something_else() -> None:
    first = block_kernels()[0]
    with pytest.raises(UnsupportedOp, match="reads"):
        build((first, first), "float32")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_more_work_takes_longer(dtype: str) -> None:
    small = next(
        kernel
        for kernel in block_kernels()
        if kernel.kind == "conv" and kernel.kernel == 3 and kernel.cin == 32
    )
    side = 8 * 4
    big = replace(
        small,
        hw_in=side * side,
        hw_out=side * side,
        macs=small.macs * 16,
        read_elements=small.read_elements * 16,
        write_elements=small.write_elements * 16,
        shapes_in=((1, 32, side, side),),
        shape_out=(1, 32, side, side),
    )
    times = LiteRTMeter(dtype).measure([(small,), (big,)], 5)
    assert 0 < min(times[0]) < min(times[1])


def test_copies_stay_within_a_networks_size() -> None:
    small = block_kernels()[0]
    huge = replace(small, weight_elements=NETWORK_BYTES["float32"])
    assert copies_for_timing((small,), "float32") > 1
    assert copies_for_timing((huge,), "float32") == 1
    assert resident_bytes((huge,), "float32") > NETWORK_BYTES["float32"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_network_runs(dtype: str) -> None:
    LiteRTMeter(dtype).network(
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()), torch.zeros(1, 3, 16, 16)
    )()


@pytest.mark.slow
def test_a_network_that_cannot_be_converted_is_refused_in_one_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eigvals(x).real

    with pytest.raises(UnsupportedOp, match="cannot convert Odd") as refused:
        to_tflite(Odd(), torch.zeros(1, 4, 4), "float32")
    assert "\n" not in str(refused.value)
    assert capfd.readouterr() == ("", "")


def test_a_trained_copy_has_no_ones_and_zeros_and_leaves_the_module_alone() -> None:
    module = nn.BatchNorm2d(4)
    copied = with_nontrivial_weights(module)
    assert all(
        len(set(values.flatten().tolist())) > 1
        for values in copied.state_dict().values()
        if values.is_floating_point()
    )
    assert module.weight.tolist() == [1.0] * 4
