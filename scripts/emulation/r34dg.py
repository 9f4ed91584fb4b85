"""R-34 on the emulated Mi 9's GPU and DSP: does it wait where the profiled phone waited?

Plays the published plan R-34-DG with the published times of its branches (`kernels_r34dg.csv`) on
the virtual clock and `--runs` times on real threads, and compares the waits at every meeting point
with the profile, and the real clock with the virtual one. `--bundle FILE.nns` also runs the network
itself as often: exported there with random weights and the predictor's times, unless it is there.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from r34dg_stages import HOST, Emulation, Stage, predicted, published, stages
from r34dg_tables import clock_table, stage_table, worst

from nnstretch.bench.commands import command_line
from nnstretch.capture import load_model
from nnstretch.capture.torch_export import capture
from nnstretch.cli.output_path import check_writable
from nnstretch.files.atomic import write_text
from nnstretch.predict import load_soc
from nnstretch.report.charts.gantt_networks import NetworkTimeline, network_gantt
from nnstretch.report.load.timeline import Timeline, TimelineSpan
from nnstretch.report.style import stand_alone
from nnstretch.run.metrics import latency_us, median_trace
from nnstretch.schedule.task_graph import durations_of_trial, tasks_of_trial
from nnstretch.soc import Soc
from nnstretch.stretch import NetworkAnalysis, lower
from nnstretch.stretch.cost.cost_model import CostModel, estimate_plan
from nnstretch.stretch.published.anynet import import_plan, match_published_network
from nnstretch.stretch.published.configs_csv import config_from_rows, read_config_rows
from nnstretch.trace import Trace
from nnstretch.trial import Trial

SOC = "mi9"
CONFIG = "R-34-DG"
CONFIGS = Path(__file__).parents[2] / "tests/data/nn_stretch/configs.csv"
LIMIT_WAIT = 0.10
LIMIT_CLOCK = 0.03
PHONE_MS = "20.8 and 23.3"
"""Whole inference by the phone's profiler, two runs; 21.2 and 23.8 from outside."""
HEAD = """# An emulated phone that waits like the real one

Made by `{command}`.

R-34-DG is NN-Stretch's ResNet-34 with a DSP and a GPU branch in each of four stages. Its authors profiled two timed inferences
(`kernels_r34dg.csv`; the phone is inferred to be the Mi 9). The GPU has an asynchronous queue: the main thread enqueues and flushes
(`Processor.enqueue_us`), goes on, and waits for an event at the meeting point. The DSP is called: a helper thread stays in the call,
which costs the main thread a push of 10 us. `nnstretch/schedule/executors/timetable.py` is the rule, for the virtual clock and for threads alike.
"""
INPUTS = """## What goes in, what comes out

In: each stage's hand-overs, GPU time (launch gap, kernels and output gap by OpenCL's own clock), DSP time, concatenation, which branch was
handed over first, and the serial layers. One number is shared by all stages: {finish:.0f} us to wake the host when the GPU has ended, which
`mi9` has from a fit (`sync_us` less `handover_us`); in the profile it is {rests} us.
Out: who waits for whom and how long, the length of each stage and of the inference.

The DSP's wait is no independent test: the DSP was not timed, its time was estimated from this very wait. It checks the order of
hand-overs only. The GPU's wait is one: the device's clock and the host's are different measurements. Which branch came first is
read off the estimates, which count the enqueue in stages 1 to 3 and not in stage 4.
"""


def planned() -> tuple[Trial, Soc]:
    """Return the published plan, priced on the chip, and the chip."""
    soc = load_soc(SOC)
    config = config_from_rows(read_config_rows(CONFIGS)[CONFIG])
    family = match_published_network(config)
    graph = capture(load_model(family.model), torch.zeros(1, 3, 224, 224), family.model)
    analysis = NetworkAnalysis(graph)
    lowered = lower(analysis, import_plan(config, analysis, family))
    return estimate_plan(lowered, soc, CostModel(soc)), soc


def ratios(virtual: Trace, traces: list[Trace]) -> dict[str, float]:
    """Latency of real runs over the virtual clock's."""
    found = np.array([latency_us(trace) / latency_us(virtual) for trace in traces])
    names = ("min", "p5", "median", "p95", "max")
    return dict(zip(names, map(float, np.percentile(found, [0, 5, 50, 95, 100])), strict=True))


def told(clock: dict[str, float]) -> str:
    return (
        f"median {clock['median']:.4f}, 5% to 95% {clock['p5']:.4f} to {clock['p95']:.4f}, least"
        f" {clock['min']:.4f}, most {clock['max']:.4f}"
    )


def with_numbers(path: Path, trial: Trial, soc: Soc, runs: int) -> str:
    """The exported network on the real clock, true numbers inside the emulated times."""
    from nnstretch.export import export
    from nnstretch.run import Session
    from nnstretch.stretch import stretch

    if not path.is_file():
        export(
            stretch(load_model(trial.plan.model), trial.plan),
            trial.plan,
            path,
            trial=trial,
            soc=soc,
        )
    traces = []
    with Session(path, soc, clock="real") as session:
        inputs = session.network.random_inputs(0)
        for _ in range(runs):
            session.run(inputs)
            traces.append(session.trace)
        clock = told(ratios(session.predicted(), traces))
        slower = session.dilation
    return f"""
## True numbers inside the emulated times

`--bundle FILE.nns`: ONNX Runtime computes the exported network on this host, {runs} inferences, the predictor's times, the clock slowed down by
{slower:.1f}. Latency over the virtual clock's: {clock}.
"""


def page(
    profile: tuple[Stage, ...], ways: dict[str, Emulation], traces: list[Trace], picture: bool
) -> str:
    main = ways["published"]
    played, said = main.played(main.virtual()), told(ratios(main.virtual(), traces))
    rests = ", ".join(
        f"{s.gpu_wait_us - s.gpu_us + (0 if s.dsp_first else s.push_us):.0f}" for s in profile
    )
    first, alone = ways["asynchronous first"], ways["predictor alone"]
    lines = [
        HEAD.replace("{command}", command_line()),
        *(["![Who computes when, virtual and real clock](emulation.svg)", ""] if picture else []),
        INPUTS.format(finish=main.finish_us, rests=rests),
        *("## Waits at the four meeting points", "", *stage_table(profile, played), ""),
        (
            f"Largest difference of a wait: {worst(profile, played):.1%} (asked for:"
            f" {LIMIT_WAIT:.0%})."
        ),
        f"Whole inference {total_ms(main):.1f} ms; the phone's profiler says {PHONE_MS} ms.\n",
        "## Asynchronous first\n",
        (
            "`StaticPlacement` fills the GPU's queue before it calls the DSP (Algorithm 1); the published"
            " runtime walks its graph and called the DSP first in\nthree of four stages. With the"
            f" same times, always the GPU first: {total_ms(first):.2f} ms instead"
            f" of\n{total_ms(main):.2f}, and the DSP waits differ, because its call starts after"
            " the enqueue:\n"
        ),
        *(*stage_table(profile, first.played(first.virtual())), ""),
        "## The predictor alone\n",
        (
            f"`mi9` without any of the profile's times, GPU first: {total_ms(alone):.1f} ms, of"
            f" which stem and head are {head_ms(alone):.1f}\n(phone: {head_ms(main):.1f}). The"
            " DSP's branches came back in about half the time that networks alone\non the DSP"
            " suggest ([card](../../latency_predictors/mi9/CARD.md)):\n"
        ),
        *(*stage_table(profile, alone.played(alone.virtual())), ""),
        "## Real time against the virtual clock\n",
        (
            f"{len(traces)} inferences on threads that sleep their times, no numbers computed,"
            f" latency over the virtual clock's: {said}\n(asked for: median within"
            f" {LIMIT_CLOCK:.0%}). Threads sleep to 250 us before an\nabsolute deadline and spin"
            " from there; a late start of up to 1 ms is made up for, so lateness of the host does"
            " not add up.\n"
        ),
        *clock_table(profile, main, traces),
    ]
    return "\n".join(lines) + "\n"


def total_ms(emulation: Emulation) -> float:
    return latency_us(emulation.virtual()) / 1000


def head_ms(emulation: Emulation) -> float:
    return (
        emulation.durations_us[emulation.tasks[0].subgraph, HOST]
        + emulation.durations_us[emulation.tasks[-1].subgraph, HOST]
    ) / 1000


def drawn(emulation: Emulation, traces: list[Trace]) -> str:
    """Virtual and real clock, a file of its own."""
    rows = []
    for source, trace in (
        ("virtual clock", emulation.virtual()),
        ("real clock, median run", median_trace(traces)),
    ):
        begin_us = min(span.start_us for span in trace.spans)
        parts = tuple(
            TimelineSpan(
                replace(span, start_us=span.start_us - begin_us, end_us=span.end_us - begin_us),
                span.task.name.partition(".")[0],
                ".merge" in span.task.name,
            )
            for span in (*trace.spans, *emulation.hand_overs(trace))
        )
        rows.append(NetworkTimeline("branched", Timeline(source, parts, 0, 1, 1)))
    return stand_alone(network_gantt(tuple(rows), (HOST, "gpu", "dsp")))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=200, help="inferences in real time (200)")
    parser.add_argument("--out", type=Path, default=None, metavar="FILE.md")
    parser.add_argument("--picture", type=Path, default=None, metavar="FILE.svg")
    parser.add_argument(
        "--bundle",
        type=Path,
        default=None,
        metavar="FILE.nns",
        help="run the exported network, too",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of the page"
    )


def run(args: argparse.Namespace) -> int:
    for path in (args.out, args.picture, args.bundle):
        check_writable(path)
    profile, (trial, soc) = stages(), planned()
    tasks = tasks_of_trial(trial, HOST)
    ways = {
        "published": published(profile, soc, tasks),
        "asynchronous first": published(profile, soc, tasks, asynchronous_first=True),
        "predictor alone": predicted(soc, tasks, durations_of_trial(trial, HOST)),
    }
    traces = ways["published"].real(max(1, args.runs))
    text = page(profile, ways, traces, args.picture is not None)
    text += with_numbers(args.bundle, trial, soc, max(1, args.runs)) if args.bundle else ""
    if args.out:
        write_text(args.out, text)
    if args.picture:
        write_text(args.picture, drawn(ways["published"], traces))
    print(json.dumps(as_json(profile, ways, traces)) if args.json else text)
    return 0


def as_json(
    profile: tuple[Stage, ...], ways: dict[str, Emulation], traces: list[Trace]
) -> dict[str, Any]:
    played = {name: way.played(way.virtual()) for name, way in ways.items()}
    return {
        "phone": [asdict(stage) for stage in profile],
        "emulated": {name: [asdict(stage) for stage in found] for name, found in played.items()},
        "worst_wait": {name: worst(profile, found) for name, found in played.items()},
        "virtual_ms": {name: total_ms(way) for name, way in ways.items()},
        "real_over_virtual": ratios(ways["published"].virtual(), traces),
        "runs": len(traces),
    }
