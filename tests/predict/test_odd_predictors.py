"""Predictors of somebody else that give no times, or nothing but zero."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from support.search_instances import NETWORK, Rate, chip

from nnstretch.errors import BadInput, UnknownName
from nnstretch.kernel import Kernel
from nnstretch.partition.partition import PartitionRequest, partitions
from nnstretch.predict import load_soc, predict_ops
from nnstretch.predict.learned import Estimates
from nnstretch.predictor import Estimate
from nnstretch.soc import Link, Processor, Soc
from nnstretch.stretch.search.search import search

DATA = Path(__file__).parents[1] / "data" / "nn_stretch"
RATE = Rate("cpu", 20_000.0)


@dataclass(frozen=True)
class Odd:
    """One kernel at a time: a given time at one width, or at any."""

    time_us: float
    cout: int | None = None
    processor: str = "cpu"

    def estimate(self, kernel: Kernel, /) -> Estimate:
        if self.cout not in (None, kernel.cout):
            return RATE.estimate(kernel)
        return Estimate(self.time_us, 0.0)


class OddGrid(Odd):
    """The same for arrays of widths."""

    def estimate_grid(self, kernel: Kernel, /) -> np.ndarray:
        times_us = 1.0 + np.asarray(kernel.macs) / RATE.macs_per_us
        return np.where(np.asarray(kernel.cout) == self.cout, self.time_us, times_us)


class OddMany(Odd):
    """The same for a list of kernels."""

    def estimate_many(self, kernels: Sequence[Kernel], /) -> Estimates:
        times_us = np.array([self.estimate(kernel).latency_us for kernel in kernels])
        return Estimates(times_us, times_us, times_us, times_us)


def chip_with(predictor: Odd) -> Soc:
    return replace(chip(), predictors=chip().predictors | {"cpu": predictor})


def search_plan(soc: Soc) -> float:
    return search(NETWORK, soc, ("cpu", "dsp"), width_steps=4).plans[0].trial.latency_us


def partition_plan(soc: Soc) -> float:
    return partitions(NETWORK, soc, PartitionRequest())[0].bottleneck_us


EACH_PLAN = pytest.mark.parametrize("plan", [search_plan, partition_plan])


@EACH_PLAN
@pytest.mark.parametrize("predictor_class", [Odd, OddMany])
@pytest.mark.parametrize("time_us", [math.nan, -1.0, math.inf])
def test_a_latency_that_is_no_time_is_refused_by_kind_and_processor(
    plan: Callable[[Soc], float], predictor_class: type[Odd], time_us: float
) -> None:
    with pytest.raises(BadInput, match=f"latency of conv is {time_us:g} us on cpu, kernel stem, "):
        plan(chip_with(predictor_class(time_us)))


@EACH_PLAN
@pytest.mark.parametrize("answer", [3.0, None])
def test_what_is_no_estimate_is_refused_by_kind_and_processor(
    plan: Callable[[Soc], float], answer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Odd, "estimate", lambda *_: answer)
    said = rf"estimate of conv is {answer} \(\w+\) on cpu, kernel stem, a predictor gives an Estim"
    with pytest.raises(BadInput, match=said):
        plan(chip_with(Odd(1.0)))


@pytest.mark.parametrize("predictor_class", [Odd, OddGrid])
@pytest.mark.parametrize("time_us", [math.nan, -1.0])
def test_a_search_refuses_it_at_one_width_of_many(
    predictor_class: type[Odd], time_us: float
) -> None:
    assert 24 not in {spec.shape[1] for spec in NETWORK.specs().values()}
    with pytest.raises(BadInput, match=f"latency of conv is {time_us:g} us on cpu, kernel "):
        search_plan(chip_with(predictor_class(time_us, cout=24)))


def test_a_list_of_operators_refuses_it() -> None:
    soc = load_soc("mi9")
    soc = replace(soc, predictors=soc.predictors | {"cpu": Odd(math.nan)})
    with pytest.raises(BadInput, match=r"latency of \w+ is nan us on cpu, kernel "):
        predict_ops(DATA / "ops_mi9.csv", soc)


@EACH_PLAN
def test_a_processor_without_a_predictor_is_refused_by_name(plan: Callable[[Soc], float]) -> None:
    soc = replace(chip(), predictors={"dsp": chip().predictors["dsp"]})
    with pytest.raises(UnknownName, match="no predictor of 'cpu', SoC toy, it has dsp"):
        plan(soc)


@EACH_PLAN
def test_work_that_takes_no_time_has_a_plan_that_takes_none(plan: Callable[[Soc], float]) -> None:
    assert plan(chip_with(Odd(0.0))) == 0
    without = tuple(Processor(p.name, p.kind, p.queue_depth) for p in chip().processors)
    nothing = {name: Odd(0.0, processor=name) for name in ("cpu", "dsp")}
    assert plan(Soc("free", without, "int8", nothing, Link())) == 0


def test_limits_and_proportions_of_work_that_takes_no_time() -> None:
    soc = chip_with(Odd(0.0))
    limits = {"min_macs": 1e6, "min_params": 1e4}
    plans = search(
        NETWORK, soc, ("cpu", "dsp"), width_steps=4, progress=lambda *_: None, **limits
    ).plans
    assert plans[0].trial.latency_us == 0
    split = partitions(NETWORK, soc, PartitionRequest(1, ("cpu",)))[0]
    assert (split.balance, split.ideal_us) == (1.0, 0.0)
