"""The error that a predictor says it has: that of kernels left out of its fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import synthetic

from nnstretch.predict import load_soc
from nnstretch.predict.kernel_family import FAR_OFF
from nnstretch.predict.save_soc import save_soc
from nnstretch.profile.fitting.fit_predictor import fit
from nnstretch.profile.sampling.sample import Sample
from nnstretch.soc import Processor, Soc
from nnstretch.testing.strategies import KernelForm, KernelSize, kernel_of_form


def test_a_single_kernel_far_off_is_not_all_of_the_error() -> None:
    """One left-out kernel was estimated near zero; a family of two has none to be left out."""
    samples = synthetic.samples(600, seed=1, noise=0.1)
    slow = replace(samples[0], latencies_us=tuple(500 * us for us in samples[0].latencies_us))
    few = [
        Sample(kernel_of_form(KernelForm("softmax", "softmax"), KernelSize(64, 64, side, 1)), (us,))
        for side, us in ((14, 10.0), (7, 9000.0))
    ]
    calm, odd = (
        fit(kernels, "cpu", "float32", growths=())
        for kernels in (samples, [slow, *samples[1:], *few])
    )
    assert odd.relative_error < 1
    for name, family in calm.families.items():
        assert max(odd.families[name].spread.error) < 2 * max(family.spread.error) + 0.1
    low, high, error = (
        getattr(odd.families["softmax"].spread, x) for x in ("low", "high", "error")
    )
    assert max(error) < 0.3
    assert min(low) < 0 < max(high)


@pytest.mark.parametrize("far_us", [2600.0, 1e-5])
def test_few_kernels_of_which_one_is_far_off_are_a_chip_that_can_be_read(
    tmp_path: Path, far_us: float
) -> None:
    """The interval of five reaches beyond the worst of them: ten times its logarithm."""
    few = [
        Sample(
            kernel_of_form(KernelForm("reshape", "view"), KernelSize(width, width, 28, 1)), (us,)
        )
        for width, us in ((16, far_us), (64, 0.2), (128, 0.2), (256, 0.2), (512, 0.2))
    ]
    learned = fit([*synthetic.samples(60, seed=1), *few], "cpu", "float32", growths=())
    spread = learned.families["reshape"].spread
    assert max(-min(spread.low), max(spread.high)) == FAR_OFF
    soc = Soc("few", (Processor("cpu", "cpu", 1),), "float32", {"cpu": learned})
    save_soc(soc, tmp_path)
    assert load_soc(tmp_path) == soc
    estimate = load_soc(tmp_path).predictor("cpu").estimate(few[0].kernel)
    low_us, high_us = estimate.interval_us or (0.0, 0.0)
    assert 0 < low_us <= estimate.latency_us <= high_us
