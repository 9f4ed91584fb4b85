"""What was measured: kernels outside of it are named, and their errors are wider."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support import synthetic

from nnstretch.errors import BrokenFile
from nnstretch.graph import ELEMENT_BYTES
from nnstretch.kernel import Kernel
from nnstretch.predict import Roofline, load_soc, save_soc
from nnstretch.predict.learned import estimate_many
from nnstretch.predict.sampled_range import (
    SIZE_SLACK,
    UNSEEN,
    WIDER,
    ranged_features,
    reason_outside,
    sampled_ranges,
)
from nnstretch.profile.fitting.fit_predictor import fit
from nnstretch.soc import Processor, Soc
from nnstretch.testing.strategies import KernelForm, KernelSize, kernel_of_form

CONV = kernel_of_form(KernelForm("conv", "conv2d", 3), KernelSize(64, 64, 28, 1))
ATTENTION = replace(CONV, name="sdpa", kind="matmul", op="scaled_dot_product_attention", kernel=1)


def mi9_cpu() -> Roofline:
    predictor = load_soc("mi9").predictors["cpu"]
    assert isinstance(predictor, Roofline)
    return predictor


def share(predictor: Roofline, kernel: Kernel) -> float:
    estimate = predictor.estimate(kernel)
    return estimate.error_us / estimate.latency_us


def test_ranges_span_the_kernels_and_everything_measured_lies_inside() -> None:
    kernels = [sample.kernel for sample in synthetic.samples(200, seed=3)]
    ranges = sampled_ranges(kernels, 4)
    assert set(ranges) == {kernel.kind for kernel in kernels}
    for kernel in kernels:
        assert reason_outside(ranges[kernel.kind], ranged_features(kernel, 4)) == ""


def test_the_feature_farthest_outside_is_named_with_its_range() -> None:
    ranges = sampled_ranges([CONV, replace(CONV, cin=128)], 4)["conv"]
    near = ranged_features(replace(CONV, cin=int(128 * SIZE_SLACK)), 4)
    assert reason_outside(ranges, near) == ""
    far = ranged_features(replace(CONV, cin=1280, macs=3 * CONV.macs), 4)
    assert reason_outside(ranges, far) == "cin 1280, measured 64 to 128"
    window = ranged_features(replace(CONV, kernel=5), 4)
    assert reason_outside(ranges, window) == "kernel 5, measured 3 to 3"


@pytest.mark.parametrize(
    ("kernel", "wider", "reason"),
    [
        (CONV, 1.0, ""),
        (replace(CONV, kernel=9), WIDER, "kernel 9, measured 1 to 7"),
        (ATTENTION, UNSEEN, "kind matmul was never measured"),
        (replace(CONV, kind="norm", op="layer_norm"), UNSEEN, "kind norm was never measured"),
    ],
)
def test_mi9_doubts_what_nobody_measured(kernel: Kernel, wider: float, reason: str) -> None:
    predictor = mi9_cpu()
    assert predictor.outside(kernel) == reason
    assert share(predictor, kernel) == pytest.approx(wider * predictor.relative_error)
    estimate = predictor.estimate(kernel)
    many = estimate_many(predictor, [kernel, CONV])
    assert many.error_us[0] == pytest.approx(estimate.error_us)
    assert estimate.interval_us == pytest.approx((many.low_us[0], many.high_us[0]))


@pytest.mark.slow
def test_a_learned_predictor_keeps_the_range_of_every_feature() -> None:
    learned = fit(synthetic.samples(400, seed=4), "cpu", "float32")
    kernel = kernel_of_form(synthetic.FORMS[0], KernelSize(128, 128, 28, 1))
    assert learned.outside(kernel) == ""
    wide = kernel_of_form(synthetic.FORMS[0], KernelSize(9000, 8, 1, 1))
    assert learned.outside(wide).startswith("cin 9000, measured ")
    inside, outside = learned.estimate(kernel), learned.estimate(wide)
    assert outside.error_us / outside.latency_us > inside.error_us / inside.latency_us


def test_ranges_stay_in_the_file_and_a_file_without_them_is_read(tmp_path: Path) -> None:
    learned = fit(synthetic.samples(200, seed=4), "cpu", "float32")
    for name, predictor in {"host": learned, "phone": mi9_cpu()}.items():
        processors = (Processor("cpu", "cpu", 1),)
        soc = Soc(name, processors, predictor.dtype, {"cpu": predictor})
        save_soc(soc, tmp_path / name)
        assert load_soc(tmp_path / name).predictors["cpu"] == predictor
    path = tmp_path / "phone" / "cpu.json"
    data = json.loads(path.read_text())
    assert ELEMENT_BYTES[data["dtype"]] == 1
    sampled = data.pop("sampled")
    path.write_text(json.dumps(data))
    assert share(load_soc(path.parent).predictors["cpu"], ATTENTION) == pytest.approx(  # type: ignore[arg-type]
        data["relative_error"]
    )
    sampled["conv"]["cin"] = [9.0, 3.0]
    path.write_text(json.dumps(data | {"sampled": sampled}))
    with pytest.raises(BrokenFile, match="the least and the most"):
        load_soc(path.parent)
