"""The error that a predictor says it has: that of kernels left out of its fit."""

from __future__ import annotations

from dataclasses import replace

from support import synthetic

from nnstretch.profile.fitting.fit_predictor import fit
from nnstretch.profile.sampling.sample import Sample
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
