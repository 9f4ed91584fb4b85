"""Optuna's samplers against the exact optimum.

How far the best of 100, 300 and 1000 trials is from it.

Every sampler starts cold (no plan of the exact search is among its trials), proposes from the space
that the exact search covers, and is told each limit by `Trial.set_constraint`. Trials are
predicted, so a study takes seconds to minutes; a sampler that needs longer than --cap-s for one
study is stopped there, and the table says at how many trials.

  OMP_NUM_THREADS=1 python scripts/compare_samplers.py --out docs/results/samplers.md
  OMP_NUM_THREADS=1 python scripts/compare_samplers.py --models torchvision:resnet18 --seeds 3
  --cap-s 60 --out docs/results/samplers.md
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import optuna

from nnstretch.cli.common import load_model_argument
from nnstretch.files.atomic import write_text
from nnstretch.predict import load_soc
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.lowering.lower import NetworkAnalysis
from nnstretch.stretch.search.constraints import NetworkLimits, SegmentLimits
from nnstretch.stretch.search.search import search
from nnstretch.study.evaluate import PlanEvaluator
from nnstretch.study.parameters import PlanSpace, plan_from_parameters
from nnstretch.study.samplers import SAMPLERS, make_sampler
from nnstretch.study.worker import suggest_parameters

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
    """One study: after each trial, the best feasible latency so far (infinite while there
    is none).
    """

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


def run(case: Case, sampler: str, seed: int, trials: int, cap_s: float, one_limit: bool) -> Run:
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
    """Median over seeds; where fewer trials were run than the mark, nothing."""
    if any(len(r.best_us) < mark for r in runs):
        return "-"
    gaps = [r.best_us[mark - 1] / optimum_us - 1 for r in runs]
    shown = [
        f"{g:.1%}" if math.isfinite(g) else "none" for g in (median(gaps), min(gaps), max(gaps))
    ]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def row(name: str, runs: Sequence[Run], optimum_us: float) -> str:
    count = [len(r.feasible) for r in runs]
    share = sum(sum(r.feasible) for r in runs) / sum(count)
    per_trial = sum(r.seconds[-1] for r in runs) / sum(count)
    last = [r.best_us[-1] / optimum_us - 1 for r in runs]
    end = f"{median(last):.1%}" if math.isfinite(median(last)) else "none"
    reached = f"{min(count)}" if min(count) == max(count) else f"{min(count)} to {max(count)}"
    cells = [
        name,
        str(len(runs)),
        *(gap_text(runs, mark, optimum_us) for mark in MARKS),
        f"{end} at {reached}",
        f"{share:.0%}",
        f"{per_trial:.3f}",
    ]
    return f"| {' | '.join(cells)} |"


def section(case: Case, runs: dict[str, list[Run]]) -> list[str]:
    about = (
        f"{len(case.space.distributions)} parameters, at least {MIN_MACS} of the original's MACs."
    )
    lines = [
        f"## {case.model}",
        "",
        f"Optimum {case.optimum_us / 1000:.3f} ms ({case.proof}); {about}",
        "",
    ]
    lines.append(
        "| sampler | seeds | "
        + " | ".join(f"gap at {mark}" for mark in MARKS)
        + " | gap at the end | feasible | s per trial |"
    )
    lines.append("|" + "---|" * (len(MARKS) + 5))
    return [*lines, *(row(NAMES[name], found, case.optimum_us) for name, found in runs.items()), ""]


def page(sections: list[str], command: str, args: argparse.Namespace) -> str:
    told = (
        "the largest share by which any limit is broken, as one limit"
        if args.one_limit
        else "every limit apart"
    )
    intro = [
        "# Samplers against the exact optimum",
        "",
        f"Made by `{command}`.",
        (
            f"Chip {args.soc}, processors {args.processors}; predicted latency. Gap: best feasible"
            " trial over the exact optimum, less one;"
        ),
        (
            f"median over up to {args.seeds} seeds (lowest to highest), `none` where no trial was"
            " feasible. No plan of the exact search was given to any"
        ),
        (
            f"sampler. Search and studies share one space ({WIDTH_STEPS} widths per branch)."
            f" Samplers were told {told}."
        ),
        f"A study that took longer than {args.cap_s:g} s was",
        (
            "stopped, and no further seed begun: `-` stands where a seed did not get so far, and"
            " the column behind says how far each got."
        ),
        "Seconds per trial: one core, proposing included.",
        "",
    ]
    return "\n".join([*intro, *sections])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    args = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    processors, sections = tuple(args.processors.split(",")), []
    known = {
        model: float(ms) for model, _, ms in (pair.rpartition("=") for pair in args.optimum_ms)
    }
    command = (
        f"OMP_NUM_THREADS=1 python scripts/compare_samplers.py {shlex.join(sys.argv[1:])}".strip()
    )
    for model in args.models.split(","):
        case = case_of(model, args.soc, processors, known.get(model))
        runs: dict[str, list[Run]] = {}
        for name in args.samplers.split(","):
            runs[name] = []
            for seed in range(args.seeds):
                if sum(r.seconds[-1] for r in runs[name]) < args.cap_s:
                    runs[name].append(
                        run(case, name, seed, args.trials, args.cap_s, args.one_limit)
                    )
            print(row(f"{model} {NAMES[name]}", runs[name], case.optimum_us), flush=True)
            done = [*sections, *section(case, runs)]
            write_text(args.out, page(done, command, args))
        sections = done
    return 0


if __name__ == "__main__":
    sys.exit(main())
