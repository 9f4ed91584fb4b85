"""Measure this machine and fit its predictors.

profile_run.py         whole profile run
kernel_generator.py    kernels drawn from a prior
kernel_spec.py         kernel from operator and shapes
kernel_sampler.py      measure until the budget is spent
sample.py              one measured kernel
interleaved_timing.py  interleaved timing
journal.py             resumable measurements
fusion_probe.py        which operators a backend fuses
fit_predictor.py       measured kernels -> Learned
uncertainty.py         which kernels are predicted badly
validation.py          held-out networks
system_costs.py        hand-over, merge, copies, contention
contention_worker.py   process that keeps a core busy
energy.py              RAPL, NVML
machine.py             cores, clusters, pinning
card.py                CARD.md writer
backends/              meters of runtimes
"""
