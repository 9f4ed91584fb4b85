"""What a page of a pipeline is made of: a run, a partition, a trace."""

from __future__ import annotations

TIMES_US = {"s0": 2000.0, "s1": 3000.0, "s2": 500.0}


RUN = {
    "model": "net.py:make",
    "mode": "pipeline",
    "clock": "real",
    "timing": "emulated",
    "items": 40,
    "period_ms": 3.2,
    "dilation": 1.5,
    "bottleneck_ms": 3.1,
    "predicted_bottleneck_ms": 3.0,
    "balance": 0.611,
    "efficiency": 0.97,
    "throughput_per_s": 312.5,
    "sequential_throughput_per_s": 181.8,
    "sequential_is": "predicted",
    "dispatch_overhead_us": 31.0,
    "failed": 2,
    "first_error": "lens cap",
    "provenance": "kernels of a phone",
    "latency_ms": {"median": 9.0, "p99": 11.0},
    "stages": [
        {
            "name": "s0",
            "processors": ["cpu"],
            "service_ms": 2.0,
            "share_ms": 2.0,
            "items": 41,
            "failed": 0,
            "late": 1,
            "busy_ms": 82.0,
            "starved_ms": 4.0,
            "blocked_ms": 40.0,
        },
        {
            "name": "s1",
            "processors": ["dsp", "gpu"],
            "service_ms": 6.2,
            "share_ms": 3.1,
            "items": 41,
            "failed": 2,
            "late": 0,
            "busy_ms": 123.0,
            "starved_ms": 2.0,
            "blocked_ms": 1.0,
        },
        {
            "name": "s2",
            "processors": ["cpu"],
            "service_ms": 0.5,
            "share_ms": 0.5,
            "items": 39,
            "failed": 0,
            "late": 0,
            "busy_ms": 20.0,
            "starved_ms": 106.0,
            "blocked_ms": 0.0,
        },
    ],
}


SPLIT = {
    "model": "net.py:make",
    "soc": "mi9",
    "bottleneck_ms": 3.0,
    "balance": 0.611,
    "bound_ms": 2.5,
    "proven": True,
    "why_open": None,
    "fastest": "cpu",
    "single_ms": {"cpu": 5.0, "dsp": None},
    "speedup_vs_fastest": 1.67,
    "split_at": "segments",
    "provenance": "kernels of a phone",
    "stages": [
        {
            "processor": "cpu",
            "processors": ["cpu"],
            "start": "input",
            "end": "layer1",
            "latency_ms": 2.0,
            "compute_ms": 1.8,
            "transfer_in_ms": 0.1,
            "transfer_out_ms": 0.1,
            "error_ms": 0.2,
            "macs": 7e6,
            "params": 1e4,
        }
    ],
}
