"""The exact search while it runs: what is proven after one, three and twenty seconds.

Every search runs in a process of its own on one core; capture is apart. Seconds are those of the
processor, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_row, markdown_table
from nnstretch.files.atomic import write_text

NETWORKS = (
    "torchvision:resnet101",
    "timm:convnext_tiny",
    "torchvision:efficientnet_v2_l",
    "torchvision:swin_t",
    "torchvision:regnet_y_32gf",
    "torchvision:vit_b_16",
)
TEAMS = ("cpu,dsp", "cpu,gpu,dsp")
SECONDS = (1.0, 3.0, 20.0)
ONE = """
import json, re, resource, sys, time
from nnstretch.cli.loaded_model import load_model_argument
from nnstretch.predict import load_soc
from nnstretch.stretch.search.search import search
analysis, soc = load_model_argument(sys.argv[1]).analysis, load_soc("mi9")
moments, last = [float(s) for s in sys.argv[3].split(",")], float(sys.argv[3].split(",")[-1])
gaps, began = {}, time.process_time()

def tell(what, done, of):
    seconds = time.process_time() - began
    proven = re.search(r"\\(([-.0-9]+)%\\)", what)
    for moment in moments:
        if proven and seconds <= moment and not what.startswith("few"):
            gaps[moment] = float(proven[1])
    if seconds > last:
        raise KeyboardInterrupt

found = search(analysis, soc, sys.argv[2].split(","), fallback="nearest", progress=tell)
seconds = time.process_time() - began
ended = [m for m in moments if seconds <= m or (m == last and m not in gaps)]
gaps |= dict.fromkeys(ended, 100 * found.gap)
print(json.dumps({
    "cuts": len(analysis.block_ends), "seconds": seconds, "optimal": found.optimal, "gaps": [gaps.get(moment) for moment in moments],
    "latency_ms": found.plans[0].trial.latency_us / 1000, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
}))
"""
HEADS = (
    *("network", "processors", "cuts", "gap after 1 s", "after 3 s", "after 20 s"),
    *("plan, ms", "proven after", "peak MB"),
)


def anytime_search(model: str, processors: str) -> dict[str, Any]:
    """Search once; return what was proven when, or why there is no answer."""
    moments = ",".join(map(str, SECONDS))
    run = subprocess.run(
        [sys.executable, "-c", ONE, model, processors, moments],
        capture_output=True,
        text=True,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
    )
    if run.returncode:
        return {"refused": run.stderr.strip().splitlines()[-1]}
    return dict(json.loads(run.stdout))


def cells(name: str, processors: str, result: dict[str, Any]) -> list[str]:
    if "refused" in result:
        return [name, processors, "", str(result["refused"]), *[""] * 5]
    gaps = ["no plan" if gap is None else f"{gap:.2f} %" for gap in result["gaps"]]
    proven = f"{result['seconds']:.1f} s" if result["optimal"] else ""
    return [
        *(name, processors, f"{result['cuts']}", *gaps, f"{result['latency_ms']:.2f}"),
        *(proven, f"{result['peak_mb']:.0f}"),
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.md")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="networks to search, all if none",
    )


def run(args: argparse.Namespace) -> int:
    rows = []
    for model, processors in product(NETWORKS, TEAMS):
        name = model.partition(":")[2]
        if not args.only or name in args.only:
            rows.append(cells(name, processors, anytime_search(model, processors)))
            print(markdown_row(rows[-1]), file=sys.stderr, flush=True)
    head = f"""# The exact search while it runs

`{command_line()}`, on `mi9`, default limits, no bound on MACs, `--fallback nearest`.

What nothing can be faster by than the best plan so far, after seconds of one core, capture apart; the search was interrupted after
{SECONDS[-1]:.0f} s. 100 % is a plan without a bound, `no plan` is before the first. Peak memory has the capture in it.
"""
    write_text(args.out, "\n".join([head, *markdown_table(HEADS, rows), ""]))
    return 0
