"""Predictors keep their promises: positive, repeatable, never faster for more work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import Kernel
from nnstretch.predict import known_socs, load_soc
from nnstretch.predict.roofline import KINDS

DATA = Path(__file__).parents[1] / "data" / "nn_stretch"


PREDICTORS = [
    load_soc(name).predictors[p.name] for name in known_socs() for p in load_soc(name).processors
]


EACH = pytest.mark.parametrize("predictor", PREDICTORS, ids=lambda p: p.processor)


@st.composite
def shapes(draw: st.DrawFn) -> Kernel:
    """A kernel of any known kind, consistent with itself."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    groups = draw(st.sampled_from((2, 4))) if kind == "gconv" else 1
    cin, cout = (8 * draw(st.integers(1, 64)) for _ in range(2))
    side, k, batch = (
        draw(st.sampled_from((1, 7, 14, 56))),
        draw(st.sampled_from((1, 3, 5))),
        draw(st.integers(1, 4)),
    )
    if kind == "dwconv":
        cout = groups = cin
    hw = side * side
    work = kind in ("conv", "gconv", "dwconv", "linear", "matmul")
    macs = batch * cout * hw * k * k * cin // groups if work else 0
    weights = macs // (batch * hw)
    return Kernel(
        "k",
        kind,
        cin,
        cout,
        hw,
        hw,
        k,
        1,
        groups,
        batch,
        macs,
        batch * cin * hw,
        batch * cout * hw,
        weights,
    )


@EACH
@settings(max_examples=60, deadline=None)
@given(kernel=shapes())
def test_estimates_are_positive_and_repeatable(predictor: Any, kernel: Kernel) -> None:
    first, second = (predictor.estimate(kernel) for _ in range(2))
    assert first == second
    assert first.latency_us > 0
    assert 0 <= first.error_us < first.latency_us


@EACH
@settings(max_examples=60, deadline=None)
@given(kernel=shapes(), factor=st.integers(2, 5))
def test_more_work_and_more_traffic_are_never_faster(
    predictor: Any, kernel: Kernel, factor: int
) -> None:
    before = predictor.estimate(kernel).latency_us
    assert predictor.estimate(replace(kernel, macs=factor * kernel.macs)).latency_us >= before
    for field in ("read_elements", "write_elements", "weight_elements"):
        more = replace(kernel, **{field: factor * getattr(kernel, field)})
        assert predictor.estimate(more).latency_us >= before, field


@EACH
@settings(max_examples=60, deadline=None)
@given(kernel=shapes())
def test_wider_outputs_and_larger_batches_are_never_faster(predictor: Any, kernel: Kernel) -> None:
    before = predictor.estimate(kernel).latency_us
    batched = {"batch": 2 * kernel.batch, "macs": 2 * kernel.macs}
    moved = {"read_elements": 2 * kernel.read_elements, "write_elements": 2 * kernel.write_elements}
    assert predictor.estimate(replace(kernel, **batched, **moved)).latency_us >= before
    if kernel.kind in ("conv", "linear"):
        wide = {
            "cout": 2 * kernel.cout,
            "macs": 2 * kernel.macs,
            "write_elements": 2 * kernel.write_elements,
        }
        assert predictor.estimate(replace(kernel, **wide)).latency_us >= before


@EACH
def test_a_kind_nobody_measured_is_refused_by_name(predictor: Any) -> None:
    odd = Kernel("node_7", "made_up", 8, 8, 49, 49, 1, 1, 1, 1, 0, 392, 392, 0)
    with pytest.raises(UnsupportedOp, match=f"'made_up'.*node_7.*{predictor.processor}"):
        predictor.estimate(odd)
