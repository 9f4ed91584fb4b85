"""Profile this machine, then predict and measure networks that were never sampled, all in one run.

    python scripts/validate_predictor.py --budget-s 420 --out docs/results/predictor_validation.md

For ONNX Runtime (float32) and LiteRT (int8): `nnstretch profile`, then 20 networks of torchvision
and timm from more than 10 families, none of which is in nnstretch/profile/prior.csv. nn-Meter's
published figures stand beside ours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from nnstretch.files.atomic import write_text

BACKENDS = (("onnxruntime", "float32"), ("litert", "int8"))
NN_METER = """
nn-Meter (README of microsoft/nn-Meter), share of 26,000 models within 10%: Cortex-A76 with TFLite 2.1 99.0%, Adreno 640 99.1%,
Adreno 630 99.0%, Myriad VPU with OpenVINO 2019R2 83.4%. Those models are variants of the families that its predictors were fitted for,
on other devices: the figures stand beside ours for scale, not as a race.
"""


def profiled(
    backend: str, dtype: str, folder: Path, budget_s: float, networks: str
) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "nnstretch.cli",
        "profile",
        "--out",
        str(folder / f"host_{backend}"),
        "--backend",
        backend,
    ]
    command += [
        "--dtype",
        dtype,
        "--budget-s",
        str(budget_s),
        "--validate",
        networks,
        "--fresh",
        "--json",
    ]
    found: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    )
    return found


def section(backend: str, dtype: str, found: dict[str, Any]) -> str:
    held = found["held_out"]
    lines = [
        f"## {backend}, {dtype}\n",
        (
            f"{found['kernels']} kernels, {found['seconds']:.0f} s in all. Mean error"
            f" **{held['mape']:.1%}**, **{held['within_10_percent']:.0%}** of"
            f" {len(found['networks'])} networks within 10%.\n"
        ),
        (
            "| network | predicted ms | measured ms | error | spread between quartiles |\n| --- |"
            " --- | --- | --- | --- |"
        ),
        *(
            f"| {r['network']} | {r['predicted_ms']:.2f} | {r['measured_ms']:.2f} |"
            f" {r['error']:+.1%} | {r['spread']:.1%} |"
            for r in found["networks"]
        ),
        *(f"\nNot told: {name}: {reason}" for name, reason in found["refused"].items()),
        f"\n{found['provenance']}\n",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget-s", type=float, default=420)
    parser.add_argument(
        "--folder", type=Path, default=Path("profiles"), help="where the profiled chips go"
    )
    parser.add_argument("--networks", default="all", help="as `nnstretch profile --validate`")
    parser.add_argument(
        "--backend",
        action="append",
        choices=[name for name, _ in BACKENDS],
        help="only these (default: both)",
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.folder.mkdir(exist_ok=True)
    head = (
        "# Predictors of this machine, validated\n\n`python scripts/validate_predictor.py"
        f" --budget-s {args.budget_s:g} --out {args.out}`\n{NN_METER}"
    )
    parts = [head]
    for backend, dtype in [
        pair for pair in BACKENDS if not args.backend or pair[0] in args.backend
    ]:
        parts.append(
            section(
                backend, dtype, profiled(backend, dtype, args.folder, args.budget_s, args.networks)
            )
        )
        write_text(args.out, "\n".join(parts))
    print("\n".join(parts))


if __name__ == "__main__":
    main()
