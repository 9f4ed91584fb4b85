"""Every shipped predictor, and one fitted here, keeps the promises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import synthetic
from support.shipped_forms import forms_of

from nnstretch.errors import UnsupportedOp
from nnstretch.predict import known_socs, load_soc
from nnstretch.profile.fitting.fit_predictor import fit
from nnstretch.testing.predictor_suite import PredictorSuite
from nnstretch.testing.strategies import KernelForm, KernelSize, kernel_of_form

SHIPPED = [(soc, processor.name) for soc in known_socs() for processor in load_soc(soc).processors]


@pytest.mark.parametrize(("soc", "processor"), SHIPPED, ids=["-".join(pair) for pair in SHIPPED])
class TestShipped(PredictorSuite):
    @pytest.fixture
    def predictor(self, soc: str, processor: str) -> Any:
        return load_soc(soc).predictors[processor]

    @pytest.fixture
    def forms(self, predictor: Any) -> tuple[KernelForm, ...]:
        return forms_of(predictor)


@pytest.fixture(scope="module")
def fitted() -> Any:
    return fit(synthetic.samples(600, seed=1), "cpu", "float32")


class TestLearned(PredictorSuite):
    @pytest.fixture
    def predictor(self, fitted: Any) -> Any:
        return fitted

    @pytest.fixture
    def forms(self) -> tuple[KernelForm, ...]:
        return synthetic.FORMS

    def test_the_trees_take_part(self, predictor: Any) -> None:
        assert any(family.forest for family in predictor.families.values())

    def test_an_operator_nobody_measured_is_refused_by_name(self, predictor: Any) -> None:
        one = kernel_of_form(KernelForm("activation", "relu"), KernelSize(16, 16, 7, 1))
        with pytest.raises(
            UnsupportedOp, match=r"'activation' of operator 'mish'.*kernel k.*processor cpu"
        ):
            predictor.estimate(replace(one, op="mish"))

    def test_a_follower_nobody_measured_is_refused_by_name(self, predictor: Any) -> None:
        with pytest.raises(
            UnsupportedOp, match=r"'mish' fused behind 'conv'.*kernel k.*processor cpu"
        ):
            predictor.estimate(
                kernel_of_form(
                    KernelForm("conv", "conv2d", 1, "blocked", ("mish",)), KernelSize(16, 16, 7, 1)
                )
            )
