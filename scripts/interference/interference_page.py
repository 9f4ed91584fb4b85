"""The page and the picture of the interference experiment."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from itertools import pairwise
from statistics import mean

from adaptive_runs import MAIN, NUMBERS, QUIET, STRETCHES, Played, play, who_is_busy, worst
from team_plans import LONGEST

from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_table
from nnstretch.bundle.manifest import Manifest, Subgraph
from nnstretch.schedule.slowdown import AdaptationSettings
from nnstretch.soc import Soc

WORST = 1.05
SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def latency_table(latencies: dict[str, list[float]]) -> list[str]:
    rows = []
    for first, last, busy in [(-QUIET, 0, "nobody"), *STRETCHES, (200, 200 + QUIET, "nobody")]:
        part = slice(first + QUIET, last + QUIET)
        means = (f"{mean(values[part]) / 1000:.2f}" for values in latencies.values())
        rows.append((f"{first} to {last}", busy, *means))
    return markdown_table(("inferences", "busy", *(f"{name}, ms" for name in latencies)), rows)


def moments(played: Played, fixed: list[float]) -> list[str]:
    """Return a table of the inferences in which anything changed or moved."""
    starts = {first for first, _, _ in STRETCHES} | {STRETCHES[-1][1]}
    changed = {n for n, (a, b) in zip(NUMBERS[1:], pairwise(played.plans), strict=True) if a != b}
    runs = zip(NUMBERS, played.plans, played.moved, played.latencies_us, fixed, strict=True)
    rows = []
    for n, plan, moved, us, fixed_us in runs:
        if n in starts | changed or moved:
            times_ms = (f"{us / 1000:.2f}", f"{fixed_us / 1000:.2f}")
            rows.append((n, who_is_busy(n) or "nobody", plan, moved, *times_ms))
    heads = ("inference", "busy", "plan", "sub-graphs moved", "ms", "fixed, ms")
    return markdown_table(heads, rows)


SHARE_HEADS = (
    *("share left", "most, times the fixed plan", "at"),
    *("mean of each stretch, times the fixed plan", "sub-graphs moved"),
)


def other_shares(manifests: Mapping[str, Manifest], soc: Soc) -> list[str]:
    """Return a table of the same with processors that are busier, or less."""
    rows = []
    for share in SHARES:
        moving = play(manifests, soc, share, adaptive=True)
        fixed = play({MAIN: manifests[MAIN]}, soc, share, adaptive=False).latencies_us
        most, at = worst(moving.latencies_us, fixed)
        ratios = []
        for first, last, _ in STRETCHES:
            part = slice(first + QUIET, last + QUIET)
            ratios.append(f"{mean(moving.latencies_us[part]) / mean(fixed[part]):.3f}")
        rows.append((f"{share:g}", f"{most:.3f}", at, ", ".join(ratios), sum(moving.moved)))
    return markdown_table(SHARE_HEADS, rows)


def page(
    args: argparse.Namespace,
    latencies: dict[str, list[float]],
    moving: Played,
    fastest: list[float],
    branch: Subgraph,
    shares: list[str],
) -> str:
    """Return the page. `fastest`: the runtime with each team's fastest plan; `branch`: the longest
    GPU branch in that of GPU and DSP.
    """
    fixed = latencies[MAIN]
    most, at = worst(latencies["adaptive"], fixed)
    between, between_at = worst(latencies["between plans only"], fixed)
    long, long_at = worst(fastest, fixed)
    gpu_ms, cpu_ms = (branch.predicted_us[name] / 1000 for name in ("gpu", "cpu"))
    late = AdaptationSettings().slow
    stretches = [slice(first + QUIET, last + QUIET) for first, last, _ in STRETCHES]
    better = all(mean(latencies["adaptive"][part]) < mean(fixed[part]) for part in stretches)
    cpu_busy = slice(100 + QUIET, 155 + QUIET)
    cost = mean(latencies["adaptive"][cpu_busy]) / mean(fastest[cpu_busy]) - 1
    changes = "\n".join(moments(moving, fixed))
    return f"""# Interference: plans that move

Made by `{command_line()}`:
{args.model} on {args.soc}, emulated on the virtual clock; a busy processor leaves {args.share:g} of its speed. The runtime is that of
`Server` ([run_and_serve.md](../guide/run_and_serve.md)). Mean latency of the adaptive runtime, which has all four plans, of the same when it moves between
plans but not within an inference, and of each plan kept fixed.

![latency per inference](interference.svg)

{chr(10).join(latency_table(latencies))}

Fixed in the picture: {MAIN}, the fastest on the quiet chip. The adaptive runtime is never more than {most:.3f} times as slow as it, in any
inference (the most at {at}; asked for: {WORST:g}), and {"faster" if better else "not faster"} in every stretch with somebody busy.
With moves between plans only: {between:.3f}, at inference {between_at}.

## Where something changed

{changes}

## Busier, and less busy

{chr(10).join(shares)}

## What it takes

At the start of an inference nobody can know that a processor has become slow since the one before. It shows within, and then only what
has not begun can go elsewhere. The longest GPU branch in the fastest plan of GPU and DSP is predicted at {gpu_ms:.1f} ms, and takes
{gpu_ms / args.share:.1f} where others take their part. To see at {late:g} times its time that it is late, and to begin again on the CPU, would end
after {late * gpu_ms:.1f} + {cpu_ms:.1f} ms; the whole of the fixed plan takes {fixed[155 + QUIET] / 1000:.1f}.
With each team's fastest plan the adaptive runtime is {long:.3f} times as slow as the fixed one, at inference {long_at}, moves or not.

So every plan but {MAIN} is its team's fastest with at most {LONGEST:g} of the network's MACs between two meeting points (`--max-fork`): what
lies behind a meeting point can go to the CPU although that was slow when last heard of, where half of the CPU's speed is still more than
half of the GPU's. In the stretch with the CPU busy the adaptive runtime takes {cost:.0%} longer for it.

A moved sub-graph takes what bundles predict for it there: copies, synchronization, and contention as though it alone had moved. What its neighbours then
lose by contention is not emulated; on `mi9` that is up to a factor of 2 on what the CPU multiplies while the DSP works.
"""


def plot(latencies: dict[str, list[float]], fixed_name: str) -> str:
    top = 1.1 * max(latencies["adaptive"] + latencies[fixed_name]) / 1000

    def place(n: int, ms: float) -> str:
        return f"{60 + 560 * n / (200 + 2 * QUIET):.1f},{300 - 250 * ms / top:.1f}"

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 350" font-family="sans-serif"'
        ' font-size="12">'
    ]
    parts.append('<rect width="680" height="350" fill="white"/>')
    for first, last, busy in STRETCHES:
        x, width = (
            60 + 560 * (first + QUIET) / (200 + 2 * QUIET),
            560 * (last - first) / (200 + 2 * QUIET),
        )
        colour = {"gpu": "#fdebd8", "cpu": "#e3eefb"}[busy]
        parts.append(f'<rect x="{x:.1f}" y="50" width="{width:.1f}" height="250" fill="{colour}"/>')
        parts.append(
            f'<text x="{x + width / 2:.1f}" y="44" text-anchor="middle">{busy.upper()} busy</text>'
        )
    for ms in range(0, int(top) + 1, 5):
        y = place(0, ms).split(",")[1]
        parts.append(
            f'<text x="52" y="{float(y) + 4:.1f}" text-anchor="end">{ms}</text><line x1="60"'
            f' y1="{y}" x2="620" y2="{y}" stroke="#ddd"/>'
        )
    for n in (0, 50, 100, 155, 200):
        parts.append(
            f'<text x="{place(n + QUIET, 0).split(",")[0]}" y="318" text-anchor="middle">{n}</text>'
        )
    parts.append(
        '<text x="340" y="340" text-anchor="middle">inference</text><text x="60" y="24">latency,'
        " ms</text>"
    )
    for name, colour in ((fixed_name, "#b84a00"), ("adaptive", "#0067a8")):
        path = " ".join(place(n, us / 1000) for n, us in enumerate(latencies[name]))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    parts.append(
        f'<text x="420" y="24" fill="#b84a00">fixed {fixed_name}</text><text x="560" y="24"'
        ' fill="#0067a8">adaptive</text>'
    )
    return "".join([*parts, "</svg>\n"])
