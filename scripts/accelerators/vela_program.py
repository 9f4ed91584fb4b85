"""Vela's cycles and traffic of MobileNet-v2 beside ours and the vendor's counters."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from judged import Section, between
from outside_programs import run_in
from vendor_tables import ethos_counters, ethos_quantities, ethos_result

from nnstretch.bench.commands import run_verb
from nnstretch.bench.markdown import markdown_table

IMAGES = 4
"""Random ones, on which int8 ranges are measured: cycles do not depend on them."""
ETHOS_CASES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("as described", ()),
    ("without vector work", ("vector.lanes=1000000",)),
    ("without waiting for the flash", ("ddr.bandwidth=1000",)),
    ("depthwise at 64 MACs a cycle", ("matrix.depthwise=64",)),
    ("all three", ("vector.lanes=1000000", "ddr.bandwidth=1000", "matrix.depthwise=64")),
)
"""Descriptions of the machine, and what each sets."""
VELA_TRAFFIC = (
    ("maps read from SRAM (axi0)", "axi0_read", ("sram_feature_map_read_bytes",)),
    ("maps written to SRAM (axi0)", "axi0_write", ("sram_feature_map_write_bytes",)),
    ("weights read from flash (axi1)", "axi1_read", ("off_chip_flash_weight_read_bytes",)),
)
"""What is moved, its counter, and the fields of Vela's summary."""
COUNTED_WEIGHTS_BYTES = 3.46e6
"""What the machine reads, by its counter."""
VELA_TEXT = (
    "Vela's total cycles, ours under `gb`, and what each of our assumptions is worth. Most of the difference is vector work: ours passes",
    "every element of scale and activation over two assumed lanes; in the machine they are stages on the way of a product to memory.",
)
VELA_TRAFFIC_TEXT = (
    "Vela's summary has the same traffic as ours. The counters of the vendor's evaluation kit have two fifths more of maps read and written, for",
    "both; which release and which settings they were read with is not noted.",
)


def int8_network(folder: Path) -> Path:
    """Export MobileNet-v2 as an int8 .tflite."""
    import numpy as np
    from PIL import Image

    photos = folder / "photos"
    photos.mkdir()
    draw = np.random.default_rng(0)
    for number in range(IMAGES):
        pixels = draw.integers(0, 256, (224, 224, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"{number}.png")
    target = folder / "mobilenet_v2.tflite"
    calibration = ["--int8", "--calibration", photos, "--calibration-images", IMAGES]
    command = ["export", "torchvision:mobilenet_v2", "--format", "litert", "--single", target]
    run_verb(*command, *calibration, "--min-snr", "-100")
    return target


def vela_summary(envs: Path, network: Path) -> dict[str, str]:
    """Return Vela's summary of a .tflite on an Ethos-U55 of 128 multipliers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = ["vela", str(network.resolve()), "--accelerator-config", "ethos-u55-128"]
        command += ["--system-config", "Ethos_U55_High_End_Embedded", "--memory-mode"]
        command += ["Shared_Sram", "--config", "Arm/vela.ini", "--output-dir", "out"]
        run_in(envs, "vela", command, folder)
        summary = next((folder / "out").glob("*summary*.csv")).read_text().splitlines()
        return dict(next(csv.DictReader(summary)))


def vela_section(envs: Path) -> Section:
    """MobileNet-v2 on an Ethos-U55 of 128 multipliers."""
    with tempfile.TemporaryDirectory() as name:
        summary = vela_summary(envs, int8_network(Path(name)))
    theirs = float(summary["cycles_total"])
    rows: list[Sequence[object]] = [["Vela", f"{theirs:,.0f}", ""]]
    for label, assume in ETHOS_CASES:
        ours = ethos_quantities(ethos_result(assume))["npu_cycles"]
        rows.append([f"ours, {label}", f"{ours:,.0f}", f"{ours / theirs:.2f}"])
    traffic, claims = vela_traffic(summary)
    lines = [
        "## ethos-u-vela 5.2.0: MobileNet-v2, int8 as exported, on `ethos-u55-128`",
        "",
        *VELA_TEXT,
        "",
        *markdown_table(("program", "cycles", "ours / Vela"), rows),
        "",
        *VELA_TRAFFIC_TEXT,
        "",
        *traffic,
    ]
    return lines, claims


def vela_traffic(summary: Mapping[str, str]) -> Section:
    """Bytes that Vela, the vendor's counters and ours move."""
    counters = ethos_counters()
    rows: list[Sequence[object]] = []
    for name, quantity, fields in VELA_TRAFFIC:
        vela = sum(float(summary[field]) for field in fields)
        ours, counted = counters[quantity]
        cells = f"{vela:,.0f}", f"{counted:,.0f}", f"{ours:,.0f}"
        rows.append([name, *cells, f"{ours / vela:.2f}", f"{ours / counted:.2f}"])
    heads = "bytes|Vela|vendor's counters|ours|ours / Vela|ours / counters"
    read = counters["axi1_read"][0]
    claim = "Ethos-U55-128, weights read over the counter's 3.46 MB"
    claims = [between(claim, read / COUNTED_WEIGHTS_BYTES, 0.95, 1.05, 3)]
    return markdown_table(heads.split("|"), rows), claims
