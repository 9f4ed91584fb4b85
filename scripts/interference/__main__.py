"""NN-Stretch's interference experiment, emulated: others keep the GPU, then the CPU, then the GPU busy.

The adaptive runtime has a plan for every pair of processors, watches what each processor really
takes and moves, between plans before an inference and among processors within it; a fixed plan
stays. It is the code of `Server` on the virtual clock, on which a busy processor is shared. Plans
are the exact search's.

    python scripts/interference --out docs/results/interference.md --picture docs/results/interference.svg
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from adaptive_runs import MAIN, play
from interference_page import other_shares, page, plot
from team_plans import plans_of

from nnstretch.bench.commands import command_parser, run_command
from nnstretch.files.atomic import write_text
from nnstretch.predict import load_soc
from nnstretch.schedule.slowdown import AdaptationSettings


def arguments() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("--model", default="torchvision:resnet34")
    parser.add_argument("--soc", default="mi9")
    parser.add_argument(
        "--share", type=float, default=0.5, help="of a busy processor's speed that is left (0.5)"
    )
    parser.add_argument("--out", type=Path, default=None, metavar="FILE.md")
    parser.add_argument("--picture", type=Path, default=None, metavar="FILE.svg")
    return parser


def main() -> int:
    args = arguments().parse_args()
    soc, unmoving = load_soc(args.soc), AdaptationSettings(moves=False)
    fastest, plans = plans_of(args.model, soc)
    moving = play(plans, soc, args.share, adaptive=True)
    latencies = {
        "adaptive": moving.latencies_us,
        "between plans only": play(
            plans, soc, args.share, adaptive=True, settings=unmoving
        ).latencies_us,
    }
    for name, plan in plans.items():
        latencies[name] = play({name: plan}, soc, args.share, adaptive=False).latencies_us
    of_fastest = play(fastest, soc, args.share, adaptive=True).latencies_us
    branches = [sub for sub in fastest["gpu+dsp"].subgraphs if sub.processor == "gpu"]
    longest = max(branches, key=lambda sub: sub.predicted_us["gpu"])
    text = page(args, latencies, moving, of_fastest, longest, other_shares(plans, soc))
    print(text)
    if args.out:
        write_text(args.out, text)
    if args.picture:
        write_text(args.picture, plot(latencies, MAIN))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
