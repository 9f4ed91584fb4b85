"""How far the best of 100, 300 and 1000 trials of Optuna's samplers is from the exact optimum.

Every sampler starts cold (no plan of the exact search is among its trials), proposes from the space
that the exact search covers, and is told each limit by `Trial.set_constraint`. Trials are
predicted, so a study takes seconds to minutes; a sampler that needs longer than --cap-s for one
study is stopped there, and the table says at how many trials.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_row, markdown_table
from nnstretch.cli.loaded_model import load_model_argument
from nnstretch.files.atomic import write_text
from nnstretch.predict import load_soc
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.constraints import NetworkLimits, SegmentLimits
from nnstretch.stretch.search.search import search
from nnstretch.study.evaluate import PlanEvaluator
from nnstretch.study.parameters import PlanSpace, plan_from_parameters
from nnstretch.study.samplers import SAMPLERS, make_sampler

MARKS = (100, 300, 1000)
NAMES = {"tpe": "TPE (multivariate)", "nsga2": "NSGA-II", "gp": "GP", "random": "random"}
MIN_MACS = 0.885
WIDTH_STEPS = 10
"""Widths per branch, in the search and in the studies alike."""


@dataclass(frozen=True)
class Case:
    """One network, and what is proven about it."""

    model: str
    space: PlanSpace
    judge: PlanEvaluator
    optimum_us: float
    proof: str


@dataclass(frozen=True)
class Run:
    """One study: after each trial, the best feasible latency so far, infinite while none is."""

    best_us: tuple[float, ...]
    feasible: tuple[bool, ...]
    seconds: tuple[float, ...]
    """Since the study began."""


def case_of(model: str, soc_name: str, processors: tuple[str, ...], known_ms: float | None) -> Case:
    subject, soc = load_model_argument(model), load_soc(soc_name)
    analysis, limits = NetworkAnalysis(subject.graph), SegmentLimits()
    bounds = NetworkLimits(min_macs=MIN_MACS * subject.graph.macs)
    space = PlanSpace(analysis, processors, limits, soc.name, WIDTH_STEPS)
    judge = PlanEvaluator(analysis, CostModel(soc), processors, limits, bounds)
    if known_ms is not None:
        return Case(model, space, judge, known_ms * 1000, "from an earlier search")
    result = search(
        analysis,
        soc,
        processors,
        limits,
        min_macs=bounds.min_macs,
        width_steps=WIDTH_STEPS,
        merges=("concat",),
    )
    proof = (
        f"{'proven' if result.optimal else 'not proven'}, {result.search_s:.1f} s of exact search"
    )
    return Case(model, space, judge, result.plans[0].trial.latency_us, proof)


def run_study(
    case: Case, sampler: str, seed: int, trials: int, cap_s: float, one_limit: bool
) -> Run:
    import optuna

    from nnstretch.study.worker import suggest_parameters

    study = optuna.create_study(sampler=make_sampler(sampler, seed))
    best_us, best, feasible, seconds = math.inf, [], [], []
    began = time.perf_counter()
    for _ in range(trials):
        trial = study.ask()
        verdict = case.judge.evaluate(
            plan_from_parameters(case.space, suggest_parameters(trial, case.space.distributions))
        )
        told = {"broken by": max(verdict.limits.values())} if one_limit else verdict.limits
        for name, value in told.items():
            trial.set_constraint(name, value)
        if verdict.trial is None:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, verdict.trial.latency_us / 1000)
        if verdict.feasible and verdict.trial is not None:
            best_us = min(best_us, verdict.trial.latency_us)
        best.append(best_us)
        feasible.append(verdict.feasible)
        seconds.append(time.perf_counter() - began)
        if len(seconds) % 100 == 0:
            print(
                f"{sampler} seed {seed}: {len(seconds)} trials,"
                f" {best_us / case.optimum_us - 1:.1%}, {seconds[-1]:.0f} s",
                file=sys.stderr,
                flush=True,
            )
        if seconds[-1] > cap_s:
            break
    return Run(tuple(best), tuple(feasible), tuple(seconds))


def gap_text(runs: Sequence[Run], mark: int, optimum_us: float) -> str:
    """Return the median over seeds, `-` where one ran fewer trials than the mark."""
    if any(len(r.best_us) < mark for r in runs):
        return "-"
    gaps = [r.best_us[mark - 1] / optimum_us - 1 for r in runs]
    shown = [
        f"{g:.1%}" if math.isfinite(g) else "none" for g in (median(gaps), min(gaps), max(gaps))
    ]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def cells(name: str, runs: Sequence[Run], optimum_us: float) -> str:
    count = [len(r.feasible) for r in runs]
    share = sum(sum(r.feasible) for r in runs) / sum(count)
    per_trial = sum(r.seconds[-1] for r in runs) / sum(count)
    last = [r.best_us[-1] / optimum_us - 1 for r in runs]
    end = f"{median(last):.1%}" if math.isfinite(median(last)) else "none"
    reached = f"{min(count)}" if min(count) == max(count) else f"{min(count)} to {max(count)}"
    gaps = (gap_text(runs, mark, optimum_us) for mark in MARKS)
    shown = (f"{end} at {reached}", f"{share:.0%}", f"{per_trial:.3f}")
    return [name, str(len(runs)), *gaps, *shown]


HEADS = (
    *("sampler", "seeds", *(f"gap at {mark}" for mark in MARKS)),
    *("gap at the end", "feasible", "s per trial"),
)


def section(case: Case, runs: dict[str, list[Run]]) -> list[str]:
    parameters = len(case.space.distributions)
    rows = (cells(NAMES[name], many, case.optimum_us) for name, many in runs.items())
    return [
        f"## {case.model}",
        "",
        f"Optimum {case.optimum_us / 1000:.3f} ms ({case.proof}); {parameters} parameters, at least"
        f" {MIN_MACS} of the original's MACs.",
        "",
        *markdown_table(HEADS, rows),
        "",
    ]


def page(sections: list[str], args: argparse.Namespace) -> str:
    told = "every limit apart"
    if args.one_limit:
        told = "the largest share by which any limit is broken, as one limit"
    intro = f"""# Samplers against the exact optimum

Made by `OMP_NUM_THREADS=1 {command_line()}`.
Chip {args.soc}, processors {args.processors}; predicted latency. Gap: best feasible trial over the exact optimum, less one;
median over up to {args.seeds} seeds (lowest to highest), `none` where no trial was feasible. No plan of the exact search was given to any
sampler. Search and studies share one space ({WIDTH_STEPS} widths per branch). Samplers were told {told}.
A study that took longer than {args.cap_s:g} s was
stopped, and no further seed begun: `-` stands where a seed did not get so far, and the column behind says how far each got.
Seconds per trial: one core, proposing included.
"""
    return "\n".join([intro, *sections])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models", default="torchvision:resnet18,torchvision:resnet50", help="comma-separated"
    )
    parser.add_argument("--soc", default="mi9")
    parser.add_argument("--processors", default="cpu,dsp")
    parser.add_argument("--samplers", default=",".join(SAMPLERS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=max(MARKS))
    parser.add_argument("--cap-s", type=float, default=60.0, help="longest time of one study")
    parser.add_argument(
        "--one-limit",
        action="store_true",
        help="tell samplers only the limit that is broken most (GP models each limit apart)",
    )
    parser.add_argument(
        "--optimum-ms",
        action="append",
        default=[],
        metavar="MODEL=MS",
        help="known from an earlier search: skips it",
    )
    parser.add_argument("--out", type=Path, default=Path("docs/results/samplers.md"))


def run(args: argparse.Namespace) -> int:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    processors = tuple(args.processors.split(","))
    pairs = [pair.rpartition("=") for pair in args.optimum_ms]
    known_ms = {model: float(ms) for model, _, ms in pairs}
    sections: list[str] = []
    for model in args.models.split(","):
        case = case_of(model, args.soc, processors, known_ms.get(model))
        runs: dict[str, list[Run]] = {}
        for name in args.samplers.split(","):
            runs[name] = run_seeds(case, name, args)
            print(markdown_row(cells(f"{model} {NAMES[name]}", runs[name], case.optimum_us)))
            write_text(args.out, page([*sections, *section(case, runs)], args))
        sections += section(case, runs)
    return 0


def run_seeds(case: Case, sampler: str, args: argparse.Namespace) -> list[Run]:
    """Run a study for each seed until together they took longer than one may."""
    runs: list[Run] = []
    for seed in range(args.seeds):
        if sum(r.seconds[-1] for r in runs) < args.cap_s:
            runs.append(run_study(case, sampler, seed, args.trials, args.cap_s, args.one_limit))
    return runs
