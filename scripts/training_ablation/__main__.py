"""Does a branched network get the original's accuracy back, and what does each part of branch-aware
training buy?

For every network and seed: the original, trained from scratch; for every set of processors the best
plan of the exact search (at 224 px, trained at the task's size), trained from scratch for as many
epochs; and the same plan inherited and distilled, for a third of them. With --ablate, one network
is retrained for that third with one part after the other. Trainings that are done are kept in
--work, so an interrupted run goes on where it was.

    OMP_NUM_THREADS=1 python scripts/training_ablation --task digits --set data.held_out=0.5
    --first-split 10 --epochs 36 --original-epochs 36 --seeds 5 --ablate ''
    OMP_NUM_THREADS=1 python scripts/training_ablation --task shapes
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from ablation_page import page
from ablation_runs import BOTH, CLASSES, COMMON, NETWORKS, Bench, trainings

from nnstretch.bench.commands import command_parser, run_command
from nnstretch.files.atomic import write_text


def arguments() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("--task", choices=CLASSES, default="digits")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a recipe's key, beyond what all tasks share",
    )
    parser.add_argument(
        "--inherited",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="likewise, where inherited and distilled only",
    )
    parser.add_argument("--networks", default=",".join(NETWORKS), help="comma-separated")
    parser.add_argument("--seeds", type=int, default=3)
    own_split = "seed N splits the images by data.split_seed K+N (all seeds share a split)"
    parser.add_argument("--first-split", type=int, metavar="K", help=own_split)
    parser.add_argument(
        "--epochs",
        type=int,
        default=18,
        help="of branched networks from scratch; inherited ones get a third",
    )
    parser.add_argument(
        "--original-epochs",
        type=int,
        default=0,
        help="of the original: what users bring is well trained (twice --epochs)",
    )
    parser.add_argument(
        "--ablate",
        default="ResNet-18",
        help="network that is retrained with one part after the other; '' for none",
    )
    parser.add_argument(
        "--train-only",
        action="store_true",
        help="train, write no page: several may share --work, with other networks or seeds",
    )
    parser.add_argument(
        "--only-seeds", default="", metavar="N[,N...]", help="with --train-only: these of the seeds"
    )
    parser.add_argument(
        "--work", type=Path, default=Path("runs/training"), help="where finished trainings are kept"
    )
    parser.add_argument("--out", type=Path, help="page to write (docs/results/training_TASK.md)")
    return parser


def main() -> int:
    parser = arguments()
    args = parser.parse_args()
    keys = (*args.set, *args.inherited)
    if args.first_split is not None and any(key.startswith("data.split_seed=") for key in keys):
        parser.error("--first-split and data.split_seed both say how images are split: give one")
    both = replace(BOTH, name=" ".join((BOTH.name, *args.inherited)), more=tuple(args.inherited))
    bench = Bench(
        args.task,
        (*COMMON, *args.set),
        args.epochs,
        args.original_epochs or 2 * args.epochs,
        args.work,
        both,
        args.first_split,
    )
    networks, seeds = args.networks.split(","), range(args.seeds)
    if args.train_only and args.only_seeds:
        seeds = [int(seed) for seed in args.only_seeds.split(",")]
    for run in trainings(bench, networks, args.ablate, seeds):
        bench.measured(run)
    if not args.train_only:
        out = args.out or Path(f"docs/results/training_{args.task}.md")
        write_text(out, page(bench, networks, args.ablate, args.seeds))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
