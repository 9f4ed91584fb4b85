"""NVDLA, Ethos-U55 and ZigZag's tpu_like beside their vendors' figures, and what scheduling takes."""

from __future__ import annotations

from modelled_cases import MODELS, SHOWN, external, modelled

from nnstretch.accelerate.accelerate import result_json
from nnstretch.bench.markdown import markdown_table


def nvdla_table() -> list[str]:
    """Return the vendor's estimates of seven sizes beside ours."""
    lines: list[list[object]] = []
    for row in external("nvdla-", "throughput"):
        result = modelled(MODELS["A"], row["machine"], "ddr", 1, 1, (), "kernel")
        estimate = float(row["value"])
        lines.append(
            [
                row["machine"],
                f"{result.throughput_per_s:.1f}",
                f"{estimate:g}",
                f"{estimate / result.throughput_per_s:.2f}",
            ]
        )
    return markdown_table(
        ["machine", "modelled frames/s", "vendor's estimate", "estimate / modelled"], lines
    )


def ethos_table() -> list[str]:
    """Return traffic and cycles of MobileNet-v2 on an Ethos-U55."""
    result = modelled("torchvision:mobilenet_v2", "ethos-u55-128", "gb", 1, 1, (), "layers")
    answer = result_json(result, "mobilenet_v2")
    ours = {"npu_cycles": result.latency_us * 500, "axi1_read": answer["weights_ddr_bytes"]}
    lines: list[list[object]] = []
    for row in external("ethos-u55-128", ""):
        if row["quantity"] in ours:
            value, counted = ours[row["quantity"]], float(row["value"])
            lines.append(
                [row["quantity"], f"{value:,.0f}", f"{counted:,.0f}", f"{value / counted:.2f}"]
            )
    return markdown_table(
        ["quantity", "modelled", "vendor's counters", "modelled / counters"], lines
    )


def zigzag_table() -> list[str]:
    """Return cycles of ResNet-18 beside ZigZag's own model."""
    lines: list[list[object]] = []
    for policy in ("ddr", "lb"):
        result = modelled("torchvision:resnet18", "zigzag-tpu-like", policy, 1, 1, (), "layers")
        quantity = "cycles" if policy == "ddr" else "cycles_on_chip"
        theirs = next(
            float(r["value"])
            for r in external("zigzag-tpu-like", quantity)
            if r["quantity"] == quantity
        )
        cycles = result.latency_us * 1000
        lines.append([policy, f"{cycles:,.0f}", f"{theirs:,.0f}", f"{cycles / theirs:.2f}"])
    return markdown_table(["policy", "modelled cycles", "ZigZag's cycles", "ratio"], lines)


def time_table() -> list[str]:
    """Return how long schedule and simulation take, capture apart."""
    cases = [("A", 64, None), ("B", 32, 8), ("B", 64, 16), ("D", 8, 2), ("J", 12, 3)]
    lines: list[list[object]] = []
    for label, batch, images in cases:
        result = modelled(MODELS[label], "stcp920", "graphturbo", batch, images)
        operators = len(result.chip.operators)
        tried = "several" if images is None else str(images)
        lines.append(
            [
                SHOWN[label],
                batch,
                tried,
                operators,
                len(result.schedule.instructions),
                f"{result.scheduling_s:.2f}",
            ]
        )
    return markdown_table(
        ["network", "batch", "a cluster", "operators", "instructions", "seconds"], lines
    )
