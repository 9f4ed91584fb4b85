"""NVDLA, Ethos-U55 and ZigZag's tpu_like beside their vendors' figures, and what scheduling takes."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from judged import JudgedClaim, between
from modelled_cases import MODELS, SHOWN, external, modelled

from nnstretch.accelerate.accelerate import AccelerateResult, result_json
from nnstretch.accelerate.machine.rates import PORT
from nnstretch.bench.markdown import markdown_table

ETHOS_MHZ = 500
NEAR_WEIGHTS = 0.05
LEAST_SHARE, MOST_SHARE = 0.5, 1.0
"""Of our rate that NVDLA's vendor estimates."""
MOST_CYCLES = 2.0
"""Between ours and ZigZag's."""


def nvdla_rates() -> dict[str, tuple[float, float]]:
    """Return our rate and the vendor's estimate by machine."""
    rates: dict[str, tuple[float, float]] = {}
    for row in external("nvdla-", "throughput"):
        result = modelled(MODELS["A"], row["machine"], "ddr", 1, 1, (), "kernel")
        rates[row["machine"]] = result.throughput_per_s, float(row["value"])
    return rates


def nvdla_table() -> list[str]:
    """Return the vendor's estimates of seven sizes beside ours."""
    lines = [
        [machine, f"{ours:.1f}", f"{estimate:g}", f"{estimate / ours:.2f}"]
        for machine, (ours, estimate) in nvdla_rates().items()
    ]
    return markdown_table(
        ["machine", "modelled frames/s", "vendor's estimate", "estimate / modelled"], lines
    )


def ethos_result(assume: tuple[str, ...] = ()) -> AccelerateResult:
    """Return MobileNet-v2 with its maps in SRAM."""
    return modelled("torchvision:mobilenet_v2", "ethos-u55-128", "gb", 1, 1, assume, "layers")


def ethos_quantities(result: AccelerateResult) -> dict[str, float]:
    """Return what the vendor counts: cycles, maps read and written in SRAM, weights read."""
    moved: Counter[str] = Counter()
    for instruction in result.schedule.instructions:
        if instruction.engine == PORT and not instruction.name.endswith(" hoist"):
            stored = instruction.name.endswith(" store")
            moved["axi0_write" if stored else "axi0_read"] += instruction.size_bytes
    weights = result_json(result, "mobilenet_v2")["weights_ddr_bytes"]
    return {"npu_cycles": result.latency_us * ETHOS_MHZ, **moved, "axi1_read": weights}


def ethos_counters() -> dict[str, tuple[float, float]]:
    """Return ours and the vendor's counters by quantity."""
    ours = ethos_quantities(ethos_result())
    return {
        row["quantity"]: (ours[row["quantity"]], float(row["value"]))
        for row in external("ethos-u55-128", "")
        if row["quantity"] in ours
    }


def ethos_table() -> list[str]:
    """Return traffic and cycles of MobileNet-v2 on an Ethos-U55."""
    lines = [
        [quantity, f"{ours:,.0f}", f"{counted:,.0f}", f"{ours / counted:.2f}"]
        for quantity, (ours, counted) in ethos_counters().items()
    ]
    heads = ["quantity", "modelled", "vendor's counters", "modelled / counters"]
    return markdown_table(heads, lines)


def zigzag_cycles_by_policy() -> dict[str, tuple[float, float]]:
    """Return our cycles of ResNet-18 and ZigZag's own by policy."""
    cycles: dict[str, tuple[float, float]] = {}
    for policy, quantity in (("ddr", "cycles"), ("lb", "cycles_on_chip")):
        result = modelled("torchvision:resnet18", "zigzag-tpu-like", policy, 1, 1, (), "layers")
        rows = external("zigzag-tpu-like", quantity)
        theirs = next(float(r["value"]) for r in rows if r["quantity"] == quantity)
        cycles[policy] = result.latency_us * 1000, theirs
    return cycles


def zigzag_table() -> list[str]:
    """Return cycles of ResNet-18 beside ZigZag's own model."""
    lines = [
        [policy, f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}"]
        for policy, (ours, theirs) in zigzag_cycles_by_policy().items()
    ]
    return markdown_table(["policy", "modelled cycles", "ZigZag's cycles", "ratio"], lines)


def vendor_claims() -> list[JudgedClaim]:
    """Return what is judged of NVDLA, Ethos-U55 and ZigZag's machine."""
    rates = nvdla_rates()
    ours, estimates = zip(*rates.values(), strict=True)
    same_order = all(
        (a > b) == (c > d)
        for (a, b), (c, d) in zip(pairwise(ours), pairwise(estimates), strict=True)
    )
    in_order = "as estimated" if same_order else "another"
    claims = [JudgedClaim("NVDLA, order of seven sizes", in_order, "as estimated", same_order)]
    for machine, (rate, estimate) in rates.items():
        claim = f"{machine}, the vendor's estimate over ours"
        claims.append(between(claim, estimate / rate, LEAST_SHARE, MOST_SHARE))
    read, counted = ethos_counters()["axi1_read"]
    claim = "Ethos-U55-128, weights read over the counter"
    claims.append(between(claim, read / counted, 1 - NEAR_WEIGHTS, 1 + NEAR_WEIGHTS))
    cycles, theirs = zigzag_cycles_by_policy()["ddr"]
    claim = "ZigZag's tpu_like, ResNet-18, cycles over its own test's"
    claims.append(between(claim, cycles / theirs, 1 / MOST_CYCLES, MOST_CYCLES))
    return claims


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
