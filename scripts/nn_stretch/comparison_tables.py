"""The tables of the comparison: originals, plans beside each other, geometric means."""

from __future__ import annotations

from collections.abc import Sequence

from comparison_rows import (
    COMBINATIONS,
    LETTERS,
    SCALE,
    Original,
    Published,
    Row,
    at_all,
    gap,
    geometric_mean,
    sum_of_rates,
)

from nnstretch.bench.markdown import markdown_table

NAMES = {processor: letter for letter, processor in LETTERS.items()}
NONE = "-"


def ms(us: float | None, error_us: float | None = None) -> str:
    off = "" if error_us is None else f" ± {error_us / 1000:.2f}"
    return NONE if us is None else f"{us / 1000:.2f}{off}"


def times(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}x"


def ratios(plan: Published | None, original: Original) -> str:
    return (
        NONE
        if plan is None
        else f"{plan.macs / original.macs:.3f} / {plan.params / original.params:.3f}"
    )


def original_table(found: Sequence[Original]) -> list[str]:
    heads = ["network", "module", "MMACs", "M parameters"]
    heads += [f"{letter} {what} ms" for letter in LETTERS for what in ("predicted", "measured")]
    rows = []
    for o in found:
        size = (f"{o.macs / 1e6:,.0f}", f"{o.params / 1e6:.2f}")
        times_ms = []
        for p in LETTERS.values():
            times_ms += [ms(o.predicted_us[p], o.error_us[p]), ms(o.measured_us.get(p))]
        rows.append([o.network, o.model, *size, *times_ms])
    return markdown_table(heads, rows)


MAIN = (
    "network",
    "on",
    "published plan",
    "original C / G / D ms",
    "published ms",
    "published, measured ms",
    "found ms",
    "one branch, equal MACs ms",
    "published MACs / params",
    "found MACs / params",
    "branched segments",
    "vs fastest alone",
    "vs phone's fastest",
    "vs equal MACs",
    "vs published",
    "limit",
    "share of limit",
    "published: share",
    "search s",
    "peak GB (before)",
    "proof",
    "remark",
)


def comparison(rows: Sequence[Row]) -> list[str]:
    return markdown_table(MAIN, (line(row) for row in rows))


def line(row: Row) -> list[str]:
    o, pub = row.original, row.published
    alone = " / ".join(ms(o.predicted_us[p]) for p in LETTERS.values())
    named = (
        row.task.bound.source
        if pub
        else f"none; {'' if at_all(row) else 'bound of '}{row.task.bound.source}"
    )
    head = [
        o.network,
        row.task.combination,
        named,
        alone,
        ms(pub and pub.predicted_us, pub and pub.error_us),
        ms(pub and pub.measured_us),
    ]
    share = NONE if pub is None else f"{row.share(pub.predicted_us, pub.macs):.2f}"
    plan = row.plan
    if plan is None:
        return [
            *head,
            NONE,
            NONE,
            ratios(pub, o),
            *[NONE] * 8,
            share,
            *seconds_and_memory(row),
            NONE,
            remark(row),
        ]
    return [
        *head,
        ms(plan.latency_us, plan.error_us),
        f"{ms(plan.iso_mac_us)} {NAMES.get(plan.iso_mac_processor, '')}",
        ratios(pub, o),
        f"{plan.macs / o.macs:.3f} / {plan.params / o.params:.3f}",
        f"{pub.meetings if pub else NONE} / {plan.meetings}",
        times(row.fastest_us / plan.latency_us),
        times(min(o.predicted_us.values()) / plan.latency_us),
        times(plan.iso_mac_us / plan.latency_us),
        times(None if pub is None else pub.predicted_us / plan.latency_us),
        times(row.limit(plan.macs)),
        f"{row.share(plan.latency_us, plan.macs):.2f}",
        share,
        *seconds_and_memory(row),
        "optimal" if plan.optimal else f"gap {gap(plan):.1%}",
        remark(row),
    ]


def seconds_and_memory(row: Row) -> tuple[str, str]:
    s = row.searched
    if s is None:
        return NONE, NONE
    seconds = f"{s.search_s:.1f}" if s.search_s == s.search_s else NONE
    return seconds, f"{s.peak_bytes / 1e9:.2f} ({s.base_bytes / 1e9:.2f})" if s.peak_bytes else NONE


def remark(row: Row) -> str:
    if row.searched is None:
        return "not searched"
    plan, pub = row.plan, row.published
    if plan is None:
        return f"{'stopped: ' if row.searched.stopped else ''}{row.searched.refusal}"
    idle = [name for name in row.processors if name not in plan.processors]
    unused = f"leaves {', '.join(idle)} idle" if idle else ""
    if pub is None or row.met:
        return unused
    later = plan.latency_us / pub.predicted_us - 1
    slower = f"slower than published by {later:.1%}" if later >= 0 else "below the bound"
    why = [*pub.breaks, *pub.outside]
    reason = f"the published plan has {', '.join(why)}, see --limits" if why else ""
    return "; ".join(part for part in (slower, reason, unused) if part)


MEANS = (
    "on",
    "plans",
    "vs fastest alone",
    "vs phone's fastest",
    "vs equal MACs",
    "share of limit",
    "with published",
    "vs published",
    "published vs fastest alone",
)


def means(rows: Sequence[Row]) -> list[str]:
    """Over the rows that have a plan.

    The two columns about published plans over those that have both.
    """
    lines = []
    for combination in COMBINATIONS:
        done = [row for row in rows if row.task.combination == combination and row.plan is not None]
        plans = [(row, row.plan) for row in done if row.plan is not None]
        both = [(row, plan, row.published) for row, plan in plans if row.published is not None]
        mean = geometric_mean(row.share(plan.latency_us, plan.macs) for row, plan in plans)
        lines.append(
            [
                combination,
                str(len(plans)),
                times(geometric_mean(row.fastest_us / plan.latency_us for row, plan in plans)),
                times(
                    geometric_mean(
                        min(row.original.predicted_us.values()) / plan.latency_us
                        for row, plan in plans
                    )
                ),
                times(geometric_mean(plan.iso_mac_us / plan.latency_us for _, plan in plans)),
                NONE if mean is None else f"{mean:.2f}",
                str(len(both)),
                times(geometric_mean(pub.predicted_us / plan.latency_us for _, plan, pub in both)),
                times(geometric_mean(row.fastest_us / pub.predicted_us for row, _, pub in both)),
            ]
        )
    return markdown_table(MEANS, lines)


PLANS = (
    "plan",
    "runs on",
    "MACs / params",
    "predicted ms",
    "measured ms",
    "error",
    "vs fastest alone, predicted",
    "measured",
    "breaks default limits",
    "outside the space",
)


def published(plans: Sequence[Published], found: Sequence[Original]) -> list[str]:
    by_name = {o.network: o for o in found}
    rows = []
    for plan in plans:
        original, used = by_name[plan.network], COMBINATIONS[plan.combination]
        alone = [original.measured_us[p] for p in used if p in original.measured_us]
        measured = (
            min(alone) / plan.measured_us if plan.measured_us and len(alone) == len(used) else None
        )
        extra = [p for p in plan.processors if p not in used]
        rows.append(
            [
                plan.config + ("" if plan.as_published else " (widths summed)"),
                plan.combination + (f", stem and head also {', '.join(extra)}" if extra else ""),
                ratios(plan, original),
                ms(plan.predicted_us, plan.error_us),
                ms(plan.measured_us),
                (
                    NONE
                    if plan.measured_us is None
                    else f"{plan.predicted_us / plan.measured_us - 1:+.1%}"
                ),
                times(min(original.predicted_us[p] for p in used) / plan.predicted_us),
                times(measured),
                ", ".join(plan.breaks) or "none",
                ", ".join(plan.outside) or "nothing",
            ]
        )
    return markdown_table(PLANS, rows)


ROUGH = (
    ("rough estimate: stage boundaries only, 26-parameter fit", 1.65, 0.885),
    ("the same at all MACs", 1.54, 1.0),
    ("published plan, measured", 1.24, 0.885),
)
"""What, speed-up over the fastest alone, MACs over the original's."""


def scale(rows: Sequence[Row]) -> list[str]:
    """Rough estimates and what was measured, beside the limit of the predicted originals."""
    row = next((r for r in rows if (r.task.network, r.task.combination) == SCALE), None)
    if row is None:
        return []
    lines = [
        [
            what,
            times(speed),
            f"{macs:.3f}",
            times(row.rates / macs),
            f"{speed * macs / row.rates:.2f}",
        ]
        for what, speed, macs in ROUGH
    ]
    for r in rows:
        if (r.task.network, r.task.combination) == SCALE and r.plan is not None:
            macs, speed = r.plan.macs / r.original.macs, r.fastest_us / r.plan.latency_us
            what = (
                f"found, at least the MACs of {r.task.bound.source}"
                if r.published
                else "found, all MACs"
            )
            lines.append(
                [
                    what,
                    times(speed),
                    f"{macs:.3f}",
                    times(r.rates / macs),
                    f"{r.share(r.plan.latency_us, r.plan.macs):.2f}",
                ]
            )
    heads = ("R-50 on C+D", "vs fastest alone", "MACs", "limit", "share of limit")
    return ["## For scale", "", *markdown_table(heads, lines), ""]


def sums(found: Sequence[Original]) -> list[str]:
    """The sum of rates at equal MACs, for every network and combination; geometric means below."""
    rates = {
        o.network: [sum_of_rates(o, combination) for combination in COMBINATIONS] for o in found
    }
    means = [geometric_mean(column) for column in zip(*rates.values(), strict=True)]
    lines = [[name, *map(times, row)] for name, row in rates.items()]
    return markdown_table(
        ("network", *COMBINATIONS), [*lines, ["geometric mean", *map(times, means)]]
    )
