"""Measure this machine and fit its predictors.

profile_run.py         whole profile run
interleaved_timing.py  interleaved timing
fusion_probe.py        which operators a backend fuses
fusion_report.py       fused kernels beside the launches of ONNX Runtime
fit_predictor.py       measured kernels -> Learned
uncertainty.py         which kernels are predicted badly
validation.py          held-out networks
system_costs.py        queue round trips, merges, copies, contention
contention_worker.py   process that keeps a core busy
energy.py              RAPL, NVML
machine.py             cores, clusters, pinning
card.py                CARD.md writer
sampling/              kernels drawn, measured and kept
backends/              meters of runtimes
"""
