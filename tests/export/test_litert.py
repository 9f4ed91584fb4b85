"""Modules as .tflite: what the files compute and are made of, float32 and int8, and what is
refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

pytest.importorskip("litert_torch")
pytest.importorskip("ai_edge_quantizer")

from ai_edge_litert.interpreter import Interpreter

from nnstretch.errors import BadInput, UnsupportedOp
from nnstretch.export.litert import packages
from nnstretch.export.litert.convert import float_operators, to_int8, to_litert
from nnstretch.export.litert.runner import LiteRTRunner, dequantize, quantize


class Merge(nn.Module):
    """Two maps in, one map out: what a meeting point with a projection is."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Conv2d(5, 6, 1)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.project(torch.cat([a, b], 1)).relu()


class Last(nn.Module):
    """A convolution with another function behind it."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(2, 3, 3), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.conv(x)).flatten(1)


def maps(seed: int, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        tuple(torch.randn(1, c, 6, 7, generator=generator) for c in (2, 3)) for _ in range(count)
    ]  # type: ignore[misc]


@pytest.fixture(scope="module")
def merge() -> tuple[Merge, bytes, bytes]:
    torch.manual_seed(0)
    module = Merge()
    plain = to_litert(module, maps(0, 1)[0], "merge")
    return module.eval(), plain, to_int8(plain, maps(1, 20), "merge")


def test_the_float_file_computes_the_module_in_pytorchs_order(
    merge: tuple[Merge, bytes, bytes],
) -> None:
    module, plain, _ = merge
    a, b = maps(2, 1)[0]
    found = LiteRTRunner(plain, "merge").run(a.numpy(), b.numpy())
    assert found.shape == (1, 6, 6, 7)
    np.testing.assert_allclose(found, module(a, b).detach().numpy(), atol=1e-5)


def test_maps_enter_and_leave_the_file_channels_last(merge: tuple[Merge, bytes, bytes]) -> None:
    runner = LiteRTRunner(merge[1], "merge")
    assert [tuple(how["shape"]) for how in runner.inputs.values()] == [(1, 6, 7, 2), (1, 6, 7, 3)]
    assert tuple(runner.output["shape"]) == (1, 6, 7, 6)


def test_int8_is_near_float_and_of_integers_throughout(merge: tuple[Merge, bytes, bytes]) -> None:
    module, plain, small = merge
    runner = LiteRTRunner(small, "merge")
    a, b = maps(1, 1)[0]
    error = np.abs(runner.run(a.numpy(), b.numpy()) - module(a, b).detach().numpy()).mean()
    assert 0 < error < 0.05
    assert {how["dtype"] for how in (*runner.inputs.values(), runner.output)} == {np.int8}
    assert float_operators(small) == ()
    assert {"CONCATENATION", "CONV_2D"} <= set(float_operators(plain))


def test_weights_have_a_scale_per_channel_and_activations_one(
    merge: tuple[Merge, bytes, bytes],
) -> None:
    tensors = Interpreter(model_content=merge[2]).get_tensor_details()
    scales = {
        tuple(t["shape"]): len(t["quantization_parameters"]["scales"])
        for t in tensors
        if t["dtype"] == np.int8
    }
    assert scales[6, 1, 1, 5] == 6
    assert scales[1, 6, 7, 2] == scales[1, 6, 7, 6] == 1


def test_ranges_are_those_of_the_calibration_inputs(merge: tuple[Merge, bytes, bytes]) -> None:
    told: list[int] = []
    wide = [(10 * a, b) for a, b in maps(1, 20)]
    first, second = LiteRTRunner(
        to_int8(merge[1], iter(wide), "merge", told.append), "merge"
    ).inputs.values()
    before, same = LiteRTRunner(merge[2], "merge").inputs.values()
    assert first["quantization"][0] == pytest.approx(10 * before["quantization"][0], rel=1e-3)
    assert second["quantization"] == same["quantization"]
    assert told == sorted(told)
    assert told[-1] == 20


def test_int8_without_calibration_inputs_is_refused(merge: tuple[Merge, bytes, bytes]) -> None:
    with pytest.raises(BadInput, match=r"^no calibration inputs, int8 of merge, "):
        to_int8(merge[1], [], "merge")


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_int8_of_values_without_a_range_is_refused(
    merge: tuple[Merge, bytes, bytes], value: float
) -> None:
    broken = [(torch.full_like(a, value), b) for a, b in maps(1, 2)]
    with pytest.raises(BadInput, match=r"^merge computes NaN or infinity, calibration inputs, "):
        to_int8(merge[1], broken, "merge")


def test_inputs_of_another_shape_or_number_are_refused(merge: tuple[Merge, bytes, bytes]) -> None:
    runner, (a, b) = LiteRTRunner(merge[1], "merge"), maps(0, 1)[0]
    with pytest.raises(BadInput, match=r"^1 inputs, LiteRT file, it takes 2$"):
        runner.run(a.numpy())
    with pytest.raises(
        BadInput, match=r"^input args_1 is \(1, 6, 7, 2\), LiteRT file, it takes \(1, 6, 7, 3\)"
    ):
        runner.run(a.numpy(), b.numpy()[:, :2])


@pytest.mark.slow
def test_an_operator_that_litert_cannot_convert_is_named_and_modes_are_kept() -> None:
    module = Last(torch.digamma)
    module.conv.eval()
    with pytest.raises(
        UnsupportedOp, match=r"^cannot convert odd to LiteRT float32, operator digamma in forward, "
    ):
        to_litert(module, (torch.randn(1, 2, 6, 6),), "odd")
    assert (module.training, module.conv.training) == (True, False)


class Upsampling(nn.Module):
    """A network that the converter refuses without a word of the operator or its module."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU())
        transposed = nn.ConvTranspose2d(3, 3, 3, 2, 1, output_padding=1)
        self.up = nn.Sequential(nn.ReLU(), transposed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(self.body(x))


@pytest.mark.slow
def test_an_operator_that_the_converter_does_not_name_is_found_with_its_module() -> None:
    with pytest.raises(
        UnsupportedOp,
        match=r"^cannot convert net to LiteRT float32, operator conv_transpose2d in up\.1, failed"
        r" to legalize operation",
    ):
        to_litert(Upsampling(), (torch.randn(1, 2, 6, 6),), "net")


@pytest.mark.slow
def test_an_operator_without_an_int8_form_is_named() -> None:
    inputs = (torch.randn(1, 2, 6, 6),)
    assert float_operators(
        to_int8(to_litert(Last(torch.sin), inputs, "wave"), [inputs], "wave")
    ) == ("SIN",)


@pytest.mark.parametrize(
    "said", ["unresolved custom op: Odd", "Didn't find op for builtin opcode 'Odd' version '1'"]
)
def test_an_operator_that_the_interpreter_lacks_is_named(said: str) -> None:
    with (
        pytest.raises(
            UnsupportedOp, match=r"^cannot convert net to LiteRT inference, operator Odd, "
        ),
        packages.converter_errors("net", "inference"),
    ):
        raise RuntimeError(said)


def test_missing_packages_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(packages, "import_module", missing)
    with pytest.raises(
        BadInput,
        match=(
            r"^LiteRT is not installed \(No module named 'litert_torch'\), .*pip install"
            r" 'nnstretch\[litert\]'$"
        ),
    ):
        to_litert(nn.Identity(), (torch.zeros(1),), "any")


INT8 = st.integers(-128, 127)


@given(st.lists(INT8, min_size=1, max_size=20), st.floats(1e-6, 1e3), INT8)
def test_what_int8_holds_survives_the_way_there_and_back(
    held: list[int], scale: float, zero_point: int
) -> None:
    how = {"dtype": np.int8, "quantization": (scale, zero_point)}
    values = np.array(held, np.int8)
    assert (quantize(dequantize(values, how), how) == values).all()


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e3), INT8)
def test_int8_is_off_by_half_a_step_or_at_its_end(
    value: float, scale: float, zero_point: int
) -> None:
    how = {"dtype": np.int8, "quantization": (scale, zero_point)}
    held = quantize(np.array([value]), how)
    back = (float(held[0]) - zero_point) * scale
    assert (
        abs(back - value) <= scale * 0.5001
        or (held[0] == 127 and value > back)
        or (held[0] == -128 and value < back)
    )
