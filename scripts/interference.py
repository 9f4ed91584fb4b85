"""NN-Stretch's interference experiment, emulated: others keep the GPU, then the CPU, then the GPU busy while a network runs.

The adaptive runtime has a plan for every pair of processors, watches what each processor really takes and moves; a fixed
plan stays. Plans are the best of the exact search; times are those of the virtual clock, on which a busy processor is shared.

  python scripts/interference.py --out docs/interference.md --picture docs/interference.svg
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean

from nnstretch.cli.subjects import load_subject
from nnstretch.files import write_text
from nnstretch.predict import load_soc
from nnstretch.schedule import Busy, Mishaps, Placed, VirtualClock, run, subgraph_of
from nnstretch.schedule.adaptive import Chooser, Variant
from nnstretch.schedule.tasks import durations_of_trial, tasks_of_trial
from nnstretch.soc import Soc
from nnstretch.stretch.optimum import search
from nnstretch.trace import Task

TEAMS = (("cpu", "gpu"), ("cpu", "dsp"), ("gpu", "dsp"), ("cpu", "gpu", "dsp"))
STRETCHES = ((0, 50, "gpu"), (50, 155, "cpu"), (155, 200, "gpu"))
"""First and last inference, and who is busy: the slides' figure."""
QUIET = 20
"""Inferences before and behind, with nobody busy."""


@dataclass(frozen=True)
class Chip:
    """What runs plans here."""

    soc: Soc
    share: float
    """Of a busy processor's speed that is left for us."""

    def latency_us(self, tasks: Sequence[Task], variant: Variant, busy: str | None, chooser: Chooser | None) -> float:
        """One inference (and what is tried beside it) on the virtual clock; the chooser hears of every task."""
        spells = (Busy(busy, 0.0, 1e12, self.share),) if busy else ()
        times = dict(variant.durations_us)
        for other in chooser.variants if chooser else ():
            times |= dict(other.durations_us)
        clock = VirtualClock(self.soc.processors, times, mishaps=Mishaps(spells))
        trace = run(tasks, Placed(tuple(p.name for p in self.soc.processors)), clock)
        own = {task.name for task in variant.tasks}
        for span in trace.spans if chooser else ():
            chooser.hear(subgraph_of(span.task), span)  # type: ignore[union-attr]
        return max(span.end_us for span in trace.spans if span.task in own)


def variants_of(model: str, soc: Soc) -> list[Variant]:
    subject, host = load_subject(model), next(p.name for p in soc.processors if p.kind == "cpu")
    found = []
    for team in TEAMS:
        trial = search(subject.stretcher, soc, team).plans[0].trial
        name = "+".join(team)
        found.append(Variant(name, tasks_of_trial(trial, host, 0, f"{name}."), durations_of_trial(trial, host, f"{name}.")))
    return found


def who_is_busy(inference: int) -> str | None:
    return next((busy for first, last, busy in STRETCHES if first <= inference < last), None)


def fixed(variant: Variant, chip: Chip) -> list[float]:
    return [chip.latency_us(variant.tasks, variant, who_is_busy(n), None) for n in range(-QUIET, 200 + QUIET)]


def adaptive(variants: Sequence[Variant], chip: Chip) -> tuple[list[float], list[str]]:
    chooser, latencies, names = Chooser(variants), [], []
    for n in range(-QUIET, 200 + QUIET):
        variant = chooser.choose()
        beside = tuple(replace(task, name=f"probe.{task.name}", needs=frozenset()) for task in chooser.probes())
        latencies.append(chip.latency_us((*variant.tasks, *beside), variant, who_is_busy(n), chooser))
        names.append(variant.name)
    return latencies, names


def rows(latencies: dict[str, list[float]]) -> list[str]:
    stretches = [(-QUIET, 0, "nobody"), *STRETCHES, (200, 200 + QUIET, "nobody")]
    lines = ["| inferences | busy | " + " | ".join(f"{name}, ms" for name in latencies) + " |", "|" + "---|" * (len(latencies) + 2)]
    for first, last, busy in stretches:
        cells = [f"{mean(values[first + QUIET : last + QUIET]) / 1000:.2f}" for values in latencies.values()]
        lines.append(f"| {first} to {last} | {busy} | " + " | ".join(cells) + " |")
    return lines


def plot(latencies: dict[str, list[float]], fixed_name: str) -> str:
    top = 1.1 * max(latencies["adaptive"] + latencies[fixed_name]) / 1000

    def place(n: int, ms: float) -> str:
        return f"{60 + 560 * n / (200 + 2 * QUIET):.1f},{300 - 250 * ms / top:.1f}"

    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 350" font-family="sans-serif" font-size="12">']
    parts.append('<rect width="680" height="350" fill="white"/>')
    for first, last, busy in STRETCHES:
        x, width = 60 + 560 * (first + QUIET) / (200 + 2 * QUIET), 560 * (last - first) / (200 + 2 * QUIET)
        colour = {"gpu": "#fdebd8", "cpu": "#e3eefb"}[busy]
        parts.append(f'<rect x="{x:.1f}" y="50" width="{width:.1f}" height="250" fill="{colour}"/>')
        parts.append(f'<text x="{x + width / 2:.1f}" y="44" text-anchor="middle">{busy.upper()} busy</text>')
    for ms in range(0, int(top) + 1, 5):
        y = place(0, ms).split(",")[1]
        parts.append(f'<text x="52" y="{float(y) + 4:.1f}" text-anchor="end">{ms}</text><line x1="60" y1="{y}" x2="620" y2="{y}" stroke="#ddd"/>')
    for n in (0, 50, 100, 155, 200):
        parts.append(f'<text x="{place(n + QUIET, 0).split(",")[0]}" y="318" text-anchor="middle">{n}</text>')
    parts.append('<text x="340" y="340" text-anchor="middle">inference</text><text x="60" y="24">latency, ms</text>')
    for name, colour in ((fixed_name, "#b84a00"), ("adaptive", "#0067a8")):
        path = " ".join(place(n, us / 1000) for n, us in enumerate(latencies[name]))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    parts.append(f'<text x="420" y="24" fill="#b84a00">fixed {fixed_name}</text><text x="560" y="24" fill="#0067a8">adaptive</text>')
    return "".join([*parts, "</svg>\n"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="torchvision:resnet34")
    parser.add_argument("--soc", default="mi9")
    parser.add_argument("--share", type=float, default=0.5, help="of a busy processor's speed that is left (0.5)")
    parser.add_argument("--out", type=Path, default=None, metavar="FILE.md")
    parser.add_argument("--picture", type=Path, default=None, metavar="FILE.svg")
    args = parser.parse_args()
    chip = Chip(load_soc(args.soc), args.share)
    variants = variants_of(args.model, chip.soc)
    moving, names = adaptive(variants, chip)
    latencies = {"adaptive": moving} | {variant.name: fixed(variant, chip) for variant in variants}
    quiet_best = min(variants, key=lambda v: v.latency_us({})).name
    worst = max(mine / theirs for mine, theirs in zip(moving, latencies[quiet_best], strict=True))
    moves = [f"{n - QUIET}: {b}" for n, (a, b) in enumerate(pairwise(names), 1) if a != b]
    lines = [
        "# Interference: plans that move",
        "",
        "Made by `python scripts/interference.py --out docs/interference.md --picture docs/interference.svg`:",
        f"{args.model} on {args.soc}, emulated on the virtual clock; a busy processor leaves {args.share:g} of its speed.",
        "Mean latency of each plan, kept fixed, and of the adaptive runtime, which has all four.",
        "",
        "![latency per inference](interference.svg)",
        "",
        *rows(latencies),
        "",
        f"Fixed in the picture: {quiet_best}, the fastest on the quiet chip. The adaptive runtime is never more than {worst:.3f} times as slow as it, in any",
        f"inference. It moves at inference {'; '.join(moves)}.",
        "",
    ]
    print("\n".join(lines))
    if args.out:
        write_text(args.out, "\n".join(lines))
    if args.picture:
        write_text(args.picture, plot(latencies, quiet_best))
    return 0


if __name__ == "__main__":
    sys.exit(main())
