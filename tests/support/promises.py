"""What every predictor promises.

Inherit `PredictorPromises`, say which `predictor` and `forms`, and pytest does the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import Kernel
from nnstretch.predict.learned import estimate_many
from nnstretch.predict.roofline import KINDS, Roofline
from nnstretch.profile.sampling.kernel_spec import KernelSpec, kernel_of_spec

MANY = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
OPS = {
    "conv": "conv2d",
    "gconv": "conv2d",
    "dwconv": "conv2d",
    "linear": "linear",
    "matmul": "matmul",
    "pool": "max_pool2d",
    "gap": "mean",
    "add": "add",
    "mul": "mul",
    "concat": "cat",
    "norm": "layer_norm",
    "activation": "relu",
    "softmax": "softmax",
    "reshape": "permute",
}
GROWING = ("cin", "cout", "side", "batch")
WHOLE = 16
"""Channels come in whole blocks, so that a kernel keeps its layout when it grows."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a kernel is, without its size."""

    kind: str
    op: str
    window: int = 1
    layout: str = ""
    epilogue: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Size:
    cin: int
    cout: int
    side: int
    batch: int


def kernel(form: Form, size: Size) -> Kernel:
    """Consistent with itself: shapes, work, traffic and weights belong together."""
    kind, channels, side, batch = form.kind, size.cin, size.side, size.batch
    out = size.cout if kind in ("conv", "gconv") else channels
    plane, wide = (batch, channels, side, side), (batch, out, side, side)
    shapes: dict[str, tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]] = {
        "linear": (((batch, channels),), (batch, size.cout)),
        "matmul": (
            ((batch, side * side, channels), (batch, channels, size.cout)),
            (batch, side * side, size.cout),
        ),
        "pool": ((plane,), (batch, channels, -(-side // 2), -(-side // 2))),
        "gap": ((plane,), (batch, channels, 1, 1)),
        "add": ((plane, plane), wide),
        "mul": ((plane, plane), wide),
        "concat": ((plane, plane), (batch, 2 * channels, side, side)),
    }
    reads, writes = shapes.get(kind, ((plane,), wide))
    groups = {"gconv": 4, "dwconv": channels}.get(kind, 1)
    recipe = KernelSpec(
        kind, form.op, reads, writes, form.window, 2 if kind == "pool" else 1, groups
    )
    return kernel_of_spec(recipe, "k", form.epilogue, form.layout)


def sizes() -> st.SearchStrategy[Size]:
    channels = st.integers(1, 48).map(lambda blocks: blocks * WHOLE)
    return st.builds(Size, channels, channels, st.integers(1, 64), st.integers(1, 4))


def forms_of(predictor: Any) -> tuple[Form, ...]:
    """What a predictor answers for, as far as it can be read off it."""
    if isinstance(predictor, Roofline):
        return tuple(
            Form(kind, OPS[kind], 3 if kind in ("conv", "gconv", "dwconv", "pool") else 1)
            for kind in sorted(KINDS & OPS.keys())
        )
    found = []
    for name, family in predictor.families.items():
        full, _, layout = name.partition(".")
        kind = full.removesuffix("1x1")
        window = 3 if kind in ("conv", "gconv", "dwconv", "pool") and full == kind else 1
        if kind in OPS and layout != "narrow":
            found += [Form(kind, op, window, layout) for op in family.ops]
            followers = [then for then in family.followers if then != "add"]
            found += [Form(kind, family.ops[0], window, layout, (then,)) for then in followers]
    return tuple(found)


class PredictorPromises:
    """Two fixtures are asked of who inherits.

    `predictor`, and `forms` (`Form`s that it was measured on).
    """

    @MANY
    @given(data=st.data())
    def test_every_estimate_is_positive_and_finite_and_inside_its_interval(
        self, predictor: Any, forms: tuple[Form, ...], data: Any
    ) -> None:
        found = predictor.estimate(kernel(data.draw(st.sampled_from(forms)), data.draw(sizes())))
        assert 0 < found.latency_us < math.inf
        assert 0 <= found.error_us < found.latency_us
        if found.interval_us is not None:
            assert 0 < found.interval_us[0] <= found.latency_us <= found.interval_us[1] < math.inf

    @MANY
    @given(data=st.data())
    def test_asking_twice_gives_one_answer(
        self, predictor: Any, forms: tuple[Form, ...], data: Any
    ) -> None:
        one = kernel(data.draw(st.sampled_from(forms)), data.draw(sizes()))
        assert predictor.estimate(one) == predictor.estimate(replace(one))

    @settings(MANY, max_examples=300)
    @given(data=st.data())
    def test_more_work_is_never_faster(
        self, predictor: Any, forms: tuple[Form, ...], data: Any
    ) -> None:
        form, size, which = (
            data.draw(st.sampled_from(forms)),
            data.draw(sizes()),
            data.draw(st.sampled_from(GROWING)),
        )
        step = WHOLE if which in ("cin", "cout") else 1
        larger = replace(
            size, **{which: getattr(size, which) + step * data.draw(st.integers(1, 40))}
        )
        before, after = (predictor.estimate(kernel(form, one)).latency_us for one in (size, larger))
        assert after >= before * (1 - 1e-9), (form, size, larger)

    @MANY
    @given(data=st.data())
    def test_more_of_one_thing_alone_is_never_faster(
        self, predictor: Any, forms: tuple[Form, ...], data: Any
    ) -> None:
        before = kernel(data.draw(st.sampled_from(forms)), data.draw(sizes()))
        for name in ("macs", "read_elements", "write_elements", "weight_elements"):
            after = replace(before, **{name: data.draw(st.integers(2, 9)) * getattr(before, name)})
            assert predictor.estimate(after).latency_us >= predictor.estimate(before).latency_us * (
                1 - 1e-9
            ), name

    @MANY
    @given(data=st.data())
    def test_many_at_once_cost_what_each_costs(
        self, predictor: Any, forms: tuple[Form, ...], data: Any
    ) -> None:
        pairs = data.draw(
            st.lists(st.tuples(st.sampled_from(forms), sizes()), min_size=1, max_size=12)
        )
        many = [kernel(form, size) for form, size in pairs]
        together, single = estimate_many(predictor, many), [predictor.estimate(one) for one in many]
        assert together.latency_us.tolist() == pytest.approx(
            [one.latency_us for one in single], rel=1e-12
        )
        assert together.error_us.tolist() == pytest.approx(
            [one.error_us for one in single], rel=1e-12
        )

    def test_the_smallest_kernel_takes_time(self, predictor: Any, forms: tuple[Form, ...]) -> None:
        for form in forms:
            assert predictor.estimate(kernel(form, Size(WHOLE, WHOLE, 1, 1))).latency_us > 0

    def test_a_kind_nobody_measured_is_refused_by_name(
        self, predictor: Any, forms: tuple[Form, ...]
    ) -> None:
        odd = replace(
            kernel(forms[0], Size(16, 16, 7, 1)), name="node_7", kind="made_up", op="made_up"
        )
        for ask in (
            predictor.estimate,
            lambda one: estimate_many(predictor, [kernel(forms[0], Size(16, 16, 7, 1)), one]),
        ):
            with pytest.raises(
                UnsupportedOp, match=rf"'made_up'.*node_7.*{predictor.processor}"
            ) as refusal:
                ask(odd)
            assert "\n" not in str(refusal.value)
