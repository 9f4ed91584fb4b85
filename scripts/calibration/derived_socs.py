"""Derive chips whose latency nobody published from mi9 and public specifications.

Every rate of mi9 is multiplied by the ratio of the specification that bounds it: arithmetic by peak
operations, traffic by memory bandwidth, whatever one host thread does by its clock. What a
specification cannot tell (how well a driver or a kernel library uses a chip) stays as on mi9. The
result is no measurement, and says so.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mi9_measurements import rounded

from nnstretch.bench.markdown import markdown_table
from nnstretch.files.atomic import write_text
from nnstretch.predict import load_soc
from nnstretch.predict.roofline import Rates, Roofline
from nnstretch.predict.save_soc import save_soc
from nnstretch.soc import BranchedError, Link, Processor, Soc

ROOT = Path(__file__).parents[2]
ASSUMED_ERROR = 0.5
"""Added to mi9's left-out error.

An assumption: specifications bound a chip and do not say how much of it software reaches.
"""


@dataclass(frozen=True, slots=True)
class Specification:
    """Public figures of one chip; its four fastest cores run the CPU branch, as on mi9."""

    chip: str
    cores: tuple[tuple[str, float, int], ...]
    """Name, GHz, and int8 multiply-accumulates a cycle.

    16 per 128-bit vector pipe, of which A76 and A78 have 2 and X1 has 4.
    """
    gpu: str
    gpu_lanes: int
    """Multiply-adds a cycle, single precision."""
    gpu_ghz: float
    bandwidth_gb_s: float
    """Peak of the main memory."""
    dsp: str = ""
    dsp_ratio: float = 1.0
    """Arithmetic over that of mi9.

    What its maker announced for the scalar part, for want of a figure for the vector units.
    """

    @property
    def host_ghz(self) -> float:
        return max(ghz for _, ghz, _ in self.cores)

    @property
    def cpu_gmacs(self) -> float:
        return sum(ghz * macs for _, ghz, macs in self.cores)

    @property
    def cpu_lanes(self) -> int:
        return sum(macs for _, _, macs in self.cores)

    @property
    def gpu_gmacs(self) -> float:
        return self.gpu_lanes * self.gpu_ghz


A76, A78, X1 = ("Cortex-A76", 32), ("Cortex-A78", 32), ("Cortex-X1", 64)


def cores(*many: tuple[tuple[str, int], float, int]) -> tuple[tuple[str, float, int], ...]:
    return tuple((name, ghz, macs) for (name, macs), ghz, count in many for _ in range(count))


REFERENCE = Specification(
    "Snapdragon 855",
    cores((A76, 2.84, 1), (A76, 2.42, 3)),
    "Adreno 640",
    768,
    0.585,
    34.1,
    "Hexagon 690",
)
SPECIFICATIONS: Mapping[str, Specification] = {
    "pixel6": Specification(
        "Google Tensor", cores((X1, 2.80, 2), (A76, 2.25, 2)), "Mali-G78 MP20", 1280, 0.848, 51.2
    ),
    "mi11": Specification(
        "Snapdragon 888",
        cores((X1, 2.84, 1), (A78, 2.42, 3)),
        "Adreno 660",
        1024,
        0.840,
        51.2,
        "Hexagon 780",
        1.5,
    ),
}


@dataclass(frozen=True, slots=True)
class Ratios:
    """Over mi9; more is faster."""

    arithmetic: float
    lanes: float
    bandwidth: float
    host: float


def ratios(chip: Specification, processor: str) -> Ratios:
    arithmetic, lanes = {
        "cpu": (chip.cpu_gmacs / REFERENCE.cpu_gmacs, chip.cpu_lanes / REFERENCE.cpu_lanes),
        "gpu": (chip.gpu_gmacs / REFERENCE.gpu_gmacs, chip.gpu_lanes / REFERENCE.gpu_lanes),
        "dsp": (chip.dsp_ratio, 1.0),
    }[processor]
    return Ratios(
        arithmetic,
        lanes,
        chip.bandwidth_gb_s / REFERENCE.bandwidth_gb_s,
        chip.host_ghz / REFERENCE.host_ghz,
    )


def scaled(rates: Rates, by: Ratios) -> Rates:
    """Rates times what bounds them, times the clock of one host thread for what it does alone."""
    return replace(
        rates,
        launch_us=rounded(rates.launch_us / by.host),
        dense_macs_per_us=rounded(rates.dense_macs_per_us * by.arithmetic),
        depthwise_macs_per_us=rounded(rates.depthwise_macs_per_us * by.arithmetic),
        fill_outputs=rounded(rates.fill_outputs * by.lanes),
        bytes_per_us=rounded(rates.bytes_per_us * by.bandwidth),
        group_us=rounded(rates.group_us / by.host),
        piece_us_per_thousand=rounded(rates.piece_us_per_thousand / by.host),
        patch_us_per_kib=rounded(rates.patch_us_per_kib / by.host),
        elementwise_us_per_kib=rounded(rates.elementwise_us_per_kib / by.host),
    )


def moved(link: Link, by: Ratios) -> Link:
    return Link(rounded(link.fixed_us / by.host), rounded(link.us_per_kib / by.bandwidth))


def derived(mi9: Soc, name: str, chip: Specification) -> Soc:
    """A chip of mi9's form: without its DSP where `chip` has none."""
    off = mi9.branched_error
    assert off is not None
    kept = [p for p in mi9.processors if p.kind != "dsp" or chip.dsp]
    names = {p.name for p in kept}
    predictors, processors = {}, []
    for processor in kept:
        by, known = ratios(chip, processor.name), mi9.predictors[processor.name]
        assert isinstance(known, Roofline)
        error = rounded(known.relative_error + ASSUMED_ERROR)
        predictors[processor.name] = Roofline(
            processor.name, mi9.dtype, scaled(known.rates, by), error, known.sampled
        )
        processors.append(crossed(processor, by))
    return Soc(
        name=name,
        processors=tuple(processors),
        dtype=mi9.dtype,
        predictors=predictors,
        merge=moved(mi9.merge, ratios(chip, "cpu")),
        calibrated=False,
        branched_error=BranchedError(
            rounded(off.relative_error + ASSUMED_ERROR),
            rounded(off.interval_factor * (1 + ASSUMED_ERROR)),
        ),
        neighbours=tuple(
            replace(n, copy_in=moved(n.copy_in, ratios(chip, n.beside)))
            for n in mi9.neighbours
            if {n.processor, n.beside} <= names
        ),
        provenance=(
            f"derived from mi9 by public specifications of {chip.chip}; no latency of it was ever"
            " published, errors are assumptions"
        ),
    )


def crossed(processor: Processor, by: Ratios) -> Processor:
    return replace(
        processor,
        copy_in=moved(processor.copy_in, by),
        copy_out=moved(processor.copy_out, by),
        sync_us=rounded(processor.sync_us / by.host),
        enqueue_us=rounded(processor.enqueue_us / by.host),
    )


CARD = """# {name}

{chip}, int8, batch 1. **Not calibrated.** No latency of this phone was ever published and none was measured by this project:
every rate is mi9's, times the ratio of the public specification that bounds it. Reports say so.

{figures}

{ratios}

What branches lose beside each other, and channel widths, are mi9's.{notes}

Error: {errors}. That is mi9's error on networks left out plus {assumed:.0%}. The {assumed:.0%} is an assumption, not a
measurement: the true error is unknown and may be larger. Compare plans with these numbers; promise nothing on them.

Written by `python scripts/calibration derived`.
"""
DSP_NOTE = """ The DSP's arithmetic ratio is an assumption: its maker announced a scalar part 50% faster
and a tensor part twice as fast, and nothing for the vector units on which mi9's DSP was measured. The TFLite delegate that ran
on mi9's DSP does not list this one."""
NO_DSP_NOTE = " It has no DSP that takes networks; its TPU is not described here."


SCALED = {
    "arithmetic": ("dense and depthwise arithmetic", "peak operations"),
    "lanes": ("outputs that fill it", "operations a cycle"),
    "bandwidth": ("traffic; copies and merge, per KiB", "memory bandwidth"),
    "host": ("launches, groups, patches, sums, fixed costs, waits", "clock of the fastest core"),
}


def card(soc: Soc, chip: Specification) -> str:
    names = [processor.name for processor in soc.processors]
    by = {name: ratios(chip, name) for name in names}
    rows = []
    for key, texts in SCALED.items():
        rows.append((*texts, *(f"{getattr(by[name], key):.3f}" for name in names)))
    errors = [f"{name} {soc.predictors[name].relative_error:.0%}" for name in names]  # type: ignore[attr-defined]
    specifications = zip(FIGURES, figures(REFERENCE), figures(chip), strict=True)
    heads = ("specification", f"{REFERENCE.chip} (mi9)", chip.chip)
    return CARD.format(
        name=soc.name,
        chip=chip.chip,
        assumed=ASSUMED_ERROR,
        notes=DSP_NOTE if chip.dsp else NO_DSP_NOTE,
        figures="\n".join(markdown_table(heads, specifications)),
        ratios="\n".join(markdown_table(("what", "scaled by", *names), rows)),
        errors=", ".join(errors),
    )


FIGURES = (
    "four fastest cores",
    "CPU int8 peak, GMAC/s",
    "GPU",
    "GPU single precision, GMAC/s",
    "memory, GB/s",
    "DSP",
)


def figures(chip: Specification) -> list[str]:
    fastest = ", ".join(f"{name} {ghz:g} GHz" for name, ghz, _ in chip.cores)
    return [
        fastest,
        f"{chip.cpu_gmacs:.0f}",
        chip.gpu,
        f"{chip.gpu_gmacs:.0f}",
        f"{chip.bandwidth_gb_s:g}",
        chip.dsp or "-",
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=ROOT / "latency_predictors")


def run(args: argparse.Namespace) -> int:
    mi9 = load_soc("mi9")
    for name, chip in SPECIFICATIONS.items():
        soc = derived(mi9, name, chip)
        save_soc(soc, args.out / name)
        write_text(args.out / name / "CARD.md", card(soc, chip))
        print(f"{name}: {args.out / name}")
    return 0
