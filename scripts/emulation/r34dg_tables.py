"""Waits at the meeting points of R-34-DG beside each other: phone, virtual clock, real clock."""

from __future__ import annotations

from statistics import median

from r34dg_stages import Emulation, Played, Stage

from nnstretch.bench.markdown import markdown_table
from nnstretch.trace import Trace


def off(emulated_us: float, measured_us: float) -> str:
    return f"{emulated_us:.0f} ({emulated_us / measured_us - 1:+.1%})"


TERMS = {
    "gpu_wait_us": "GPU wait",
    "dsp_wait_us": "DSP wait",
    "host_us": "stage on the host",
}
STAGES = ("s1", "s2", "s3", "s4")


def stage_table(profile: tuple[Stage, ...], played: tuple[Played, ...]) -> list[str]:
    rows: list[list[str]] = []
    pairs = list(zip(profile, played, strict=True))
    for key, name in TERMS.items():
        after = " after hand-over" if "wait" in name else ""
        rows.append([f"{name}{after}, phone", *(f"{getattr(s, key):.0f}" for s in profile)])
        rows.append(
            [f"{name}, emulated", *(off(getattr(p, key), getattr(s, key)) for s, p in pairs)]
        )
    phone_us = [s.gpu_wait_us - s.dsp_wait_us for s in profile]
    rows.append(["DSP has ended, waits for the GPU, phone", *(f"{us:.0f}" for us in phone_us)])
    cells = []
    for stage, measured_us in zip(played, phone_us, strict=True):
        idle_us = stage.gpu_wait_us - stage.dsp_wait_us
        gpu_waits = f"the GPU waits {-idle_us:.0f}"
        cells.append(off(idle_us, measured_us) if idle_us >= 0 else gpu_waits)
    rows.append(["the same, emulated", *cells])
    rows.append(["last to end, emulated", *(p.last for p in played)])
    return markdown_table(("us", *STAGES), rows)


def worst(profile: tuple[Stage, ...], played: tuple[Played, ...]) -> float:
    """Largest relative difference of any wait."""
    keys = ("gpu_wait_us", "dsp_wait_us")
    return max(
        abs(getattr(p, key) / getattr(s, key) - 1)
        for s, p in zip(profile, played, strict=True)
        for key in keys
    )


def clock_table(profile: tuple[Stage, ...], emulation: Emulation, traces: list[Trace]) -> list[str]:
    """Compare each stage's waits on the real clock, median over runs, with the virtual one's."""
    virtual = emulation.played(emulation.virtual())
    real = [emulation.played(trace) for trace in traces]
    rows = []
    for key, name in TERMS.items():
        cells = [name]
        for number in range(len(profile)):
            middle_us = median(getattr(run[number], key) for run in real)
            cells.append(off(middle_us, getattr(virtual[number], key)))
        rows.append(cells)
    heads = ("us, median of the runs (against the virtual clock)", *STAGES)
    return markdown_table(heads, rows)
