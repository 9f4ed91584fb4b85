"""Every published finding beside what the simulation shows: reproduced, or not and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from published import MIX_MBPS

from nnstretch.bench.markdown import markdown_table

PLATEAU = 0.95
"""Share of the plateau at which a pool counts as saturated."""
NOISE = 0.05
FLAT = 0.05
FLAT_DECISIONS = 3.0
"""A decision counts as flat up to so many times as long; ETF's grew sevenfold where published."""
Measured = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """One published finding."""

    what: str
    published: str
    here: str
    reproduced: bool | None
    """None where it was not played."""
    why: str = ""
    """Said where it was not reproduced, or not played."""

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        if self.reproduced is None:
            verdict = f"not played: {self.why}"
        else:
            verdict = "yes" if self.reproduced else f"no: {self.why}"
        return self.what, self.published, self.here, verdict


def findings_table(measured: Measured) -> list[str]:
    """Return the table of all findings."""
    findings = (
        *detection_findings(measured),
        *instance_findings(measured),
        *signal_findings(measured),
        *load_findings(measured),
        *decision_findings(measured),
        *not_played(),
    )
    heads = ("finding, zcu102 (not calibrated)", "published", "here", "reproduced")
    return markdown_table(heads, [finding.cells for finding in findings])


def detection_findings(measured: Measured) -> tuple[Finding, ...]:
    """Return what the accelerators do to one instance of detection."""
    gain = measured["eft neither"] / measured["eft both"]
    slower = measured["rr conv2d"] / measured["rr neither"] - 1
    zip_gain = 1 - measured["eft zip"] / measured["eft neither"]
    apart = measured["etf conv2d"] / measured["eft conv2d"] - 1
    return (
        Finding(
            "the accelerators make detection faster",
            "1.2x at best",
            f"{gain:.2f}x",
            gain > 1.1,
            "the units take too little",
        ),
        Finding(
            "RR becomes slower with the conv2d unit",
            "by 36%",
            f"by {slower:.0%}",
            slower > NOISE,
            "the unit is too fast here",
        ),
        Finding(
            "ZIP alone gives nothing",
            "7.50 to 7.49 s",
            f"{zip_gain:.0%} less time",
            abs(zip_gain) < 0.01,
            "by CEDR's own costs the unit adds 14.7 times as fast as a CPU, and additions leave the"
            " CPUs; what a call costs beside that was not published",
        ),
        Finding(
            "ETF and HEFT_RT gain less from conv2d alone than EFT",
            "7.03 against 6.42 s",
            f"{apart:+.1%}",
            apart > NOISE,
            "calls of one layer cost the same and policies know it; CEDR knows one cost for all",
        ),
    )


def instance_findings(measured: Measured) -> tuple[Finding, ...]:
    """Return what instances that arrive at once do."""
    seconds: Sequence[float] = measured["instances eft"]
    saved = 1 - seconds[2] / seconds[0]
    after = 1 - seconds[9] / seconds[2]
    policies = [measured[f"instances {name}"] for name in ("eft", "etf", "heft_rt")]
    spread = max(max(column) / min(column) - 1 for column in zip(*policies, strict=True))
    return (
        Finding(
            "overlap of instances saves a quarter by 3 instances",
            "6.24 to 4.92 s, 21%",
            f"{saved:.0%}",
            saved > 0.15,
            "the calls of one instance keep all processors busy here but at the ends of layers, so"
            " that little is left to overlap; what runs between calls was not published",
        ),
        Finding(
            "gains flatten after 3 instances",
            "4.92 to 4.91 s",
            f"{after:.1%} from 3 to 10",
            abs(after) < FLAT,
            "instances go on to gain",
        ),
        Finding(
            "EFT, ETF and HEFT_RT are within noise",
            "within 7%",
            f"within {spread:.1%}",
            spread < 0.07,
            "policies differ",
        ),
    )


def signal_findings(measured: Measured) -> tuple[Finding, ...]:
    """Return what the rate does to the signal mix."""
    plateaus = [measured[f"mix {cpus} cpu eft"][-1] for cpus in (1, 2, 3)]
    ratio = plateaus[0] / plateaus[2]
    saturated = [saturated_at(measured[f"mix {cpus} cpu eft"]) for cpus in (1, 2, 3)]
    alike = [measured[f"mix 1 cpu {name}"][-1] for name in ("rr", "met", "eft", "heft_rt")]
    wifi_ms, doppler_ms = measured["apps 1 cpu eft"]
    fft = measured["mix 3 cpu + fft met"][-1] / measured["mix 3 cpu met"][-1]
    return (
        Finding(
            "execution time saturates with the rate",
            "95% of the plateau at 200-300 Mbps (90-600)",
            f"at {', '.join(map(str, saturated))} Mbps on 1, 2, 3 CPUs",
            all(90 <= rate <= 600 for rate in saturated),
            "WiFi-TX ends early beside pulse Doppler, and only the latter's share goes on to grow",
        ),
        Finding(
            "plateaus on 1, 2, 3 CPUs",
            "470, 245, 182 ms",
            ", ".join(f"{ms:.0f}" for ms in plateaus) + " ms",
            abs(plateaus[0] / 470 - 1) < 0.2,
            f"on one CPU WiFi-TX takes {wifi_ms:.0f} ms and pulse Doppler {doppler_ms:.0f}: the"
            " long one alone is near the published mean; DAG mode's WiFi-TX, which was measured, has 100"
            " frames, the API version that is played 10",
        ),
        Finding(
            "three CPUs against one at the plateau",
            f"{470 / 182:.1f}x",
            f"{ratio:.1f}x",
            abs(ratio / (470 / 182) - 1) < 0.25,
            "nothing else runs on the CPUs here",
        ),
        Finding(
            "on one CPU all policies but ETF are alike",
            "within 5%",
            f"within {max(alike) / min(alike) - 1:.1%}",
            max(alike) / min(alike) - 1 < NOISE,
            "policies differ",
        ),
        Finding(
            "MET starves when its preferred type is saturated",
            "said of its rule",
            f"MET takes {fft:.1f} times as long with the FFT unit as without",
            fft > 1.2,
            "the unit keeps up",
        ),
    )


def saturated_at(values: Sequence[float]) -> int:
    """Return the first rate at which a curve reaches its plateau, Mbps."""
    for mbps, value in zip(MIX_MBPS, values, strict=True):
        if value >= PLATEAU * values[-1]:
            return mbps
    return MIX_MBPS[-1]


def load_findings(measured: Measured) -> tuple[Finding, ...]:
    """Return what mixed loads and shared cores do."""
    alone, apart, shared = measured["shared eft"]
    turns = measured["shared rr"]
    rich, poor = measured["mixed both"], measured["mixed neither"]
    ranges = f"{min(rich):.0f} to {max(rich):.0f} ms with both, {min(poor):.0f} to {max(poor):.0f}"
    return (
        Finding(
            "beside detection, pools with conv2d keep the mix faster",
            "0.2 to 0.5 s with, 0.25 to 0.6 s without",
            f"{ranges} ms without",
            max(rich) < max(poor),
            "signal tasks wait behind calls of detection",
        ),
        Finding(
            "detection delays the mix by no more than that",
            "at most 0.6 s",
            f"up to {max(poor) / 1000:.1f} s",
            max(poor) < 600,
            "under queueing EFT puts all calls of a layer into queues at once, and signal tasks come"
            " behind them; calls stand for many of CEDR's, which wait less",
        ),
        Finding(
            "accelerators whose threads share CPU cores cost throughput, RR",
            "191 ms on 3 CPUs, 222 with two units",
            f"{turns[0]:.0f} ms; {turns[2]:.0f} where the FFT unit's thread takes half of a core",
            turns[2] > turns[0],
            "the unit gives more than its thread takes",
        ),
        Finding(
            "the same, EFT",
            "200 ms on 3 CPUs, 219 with two units",
            f"{alone:.0f} ms; {apart:.0f} with an FFT unit, {shared:.0f} where its thread takes half"
            " of a core",
            shared > alone,
            "most of the mix is FFTs here, so that the unit gives more than its thread takes; the"
            " second unit, for matrices, is not described",
        ),
        Finding(
            "a shared core makes the same unit worth less",
            "the authors' remark on threads per CPU",
            f"{shared / apart - 1:+.0%} time",
            shared > apart * (1 + NOISE),
            "the thread takes too little",
        ),
    )


def decision_findings(measured: Measured) -> tuple[Finding, ...]:
    """Return what decisions cost; microseconds of the host that simulated."""
    flat: list[float] = []
    for policy in ("rr", "met", "eft", "heft_rt"):
        first, last = measured[f"decision {policy}"]
        flat.append(last / first)
    etf = measured["decision etf"]
    slower = measured["mix 3 cpu etf"][-1] / measured["mix 3 cpu eft"][-1]
    return (
        Finding(
            "deciding costs SIMPLE, MET, EFT and HEFT_RT the same at every rate",
            "0.6 to 1.1 ms an application, flat",
            f"{min(flat):.1f} to {max(flat):.1f} times as long a decision at 2000 as at 10 Mbps",
            max(flat) < FLAT_DECISIONS,
            "decisions take longer",
        ),
        Finding(
            "deciding by ETF grows with the square of the queue",
            "4.3 to 31 ms an application on 3 CPUs",
            f"{etf[0]:.1f} to {etf[-1]:.1f} us a task",
            etf[-1] > 3 * etf[0],
            "the same choices are made from a heap for each processor",
        ),
        Finding(
            "ETF saturates later and slower than the others on 3 CPUs",
            "343 against 200 ms",
            f"{slower:.2f} times EFT's time",
            slower > 1.2,
            "its decisions take a core's time there, 31 ms an application; on the virtual clock"
            " deciding takes none",
        ),
    )


def not_played() -> tuple[Finding, ...]:
    """Return findings that a simulation of this chip says nothing about."""
    rows = (
        ("API mode against DAG mode", "-19.5% overhead", "the daemon is not simulated"),
        (
            "lane detection: FFT units beyond the CPUs slow down",
            "3 CPUs, up to 8 FFT units",
            "its sizes and times were not published, and its threads are those of the row on"
            " shared cores",
        ),
        ("cached schedules, CEDR-Taskflow", "up to 6.1x and 1.47x", "other runtimes"),
        ("value-of-service scheduler", "120 us a decision", "another simulator's"),
        ("matrix units (M1) in the pool", "225 to 692 ms", "the described chip has none"),
        ("no loss of accuracy", "said", "no values are computed"),
    )
    return tuple(Finding(what, said, "", None, why) for what, said, why in rows)
