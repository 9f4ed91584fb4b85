"""Compare what every verb answers with what it answered before: golden files, or another tree.

    python scripts/same_behaviour.py --check            # against tests/data/golden/behaviour.json
    python scripts/same_behaviour.py --against FOLDER    # against another checkout, to the last bit
    python scripts/same_behaviour.py --write             # keep today's answers as the golden file

Each command runs through the command line only, on small networks, so the script fits any state
of the code. An answer is the exit status, the JSON object, the refusal's line, and a digest of every
file that was written. Wall-clock numbers are left out by name (`VOLATILE`). Digests of computed
numbers depend on the CPU, so `--check` leaves them out and compares numbers to 1e-6; `--against`
compares everything exactly. Takes about two minutes a tree on one core.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "data" / "golden" / "behaviour.json"
VOLATILE = frozenset(
    {
        *("search_s", "seconds", "images_per_s", "dispatch_overhead_us", "scheduling_s", "spent_s"),
        *("val_accuracy", "sequential_throughput_per_s", "plan_s", "train_s", "wall_s"),
    }
)
"""Fields that tell wall-clock times, or (accuracy) round differently on another CPU."""

NETWORK = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels, out, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU()
        self.down = None
        if stride != 1 or channels != out:
            self.down = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.down is None else self.down(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 1, 1)
        self.layer1 = nn.Sequential(Block(32, 64, 2), Block(64, 64), Block(64, 64))
        self.layer2 = nn.Sequential(Block(64, 128, 2), Block(128, 128), Block(128, 128))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(128, 10)

    def forward(self, x):
        return self.fc(self.pool(self.layer2(self.layer1(self.stem(x)))).flatten(1))


def make():
    torch.manual_seed(0)
    return Net()
"""

BAD_PLAN = "format: 1\nmodel: net.py:make\ninput: [1, 3, 64, 64]\nmerge: concat\nsegments:\n  - {end: nowhere, processor: cpu}\n"
NET = "net.py:make --input 1,3,64,64"
MI9 = "--soc mi9"
COMMANDS = {
    "inspect": f"inspect {NET}",
    "inspect_resnet18": "inspect torchvision:resnet18 --input 1,3,64,64",
    "import": "import {data}/nn_stretch/example_R-34-CD.yaml --out r34.yaml",
    "predict": f"predict {NET} {MI9} --processors cpu,gpu,dsp",
    "predict_ops": "predict --ops {data}/nn_stretch/ops_mi9.csv --soc mi9",
    "predict_published": "predict r34.yaml --soc mi9",
    "search": f"search {NET} {MI9} --processors cpu,dsp --min-macs 0.9x --top 3 --out plan.yaml",
    "search_three": f"search {NET} {MI9} --processors cpu,gpu,dsp --min-params 0.5x --out three.yaml",
    "search_resnet18": "search torchvision:resnet18 --input 1,3,64,64 --soc mi9 --processors cpu,dsp --min-macs 0.9x",
    "search_explain": f"search {NET} {MI9} --processors cpu,dsp --explain layer1",
    "search_pareto": f"search {NET} {MI9} --processors cpu,dsp --pareto macs --picture front.svg",
    "search_sensitivity": f"search {NET} {MI9} --processors cpu,dsp --sensitivity",
    "predict_plan": "predict plan.yaml --soc mi9",
    "inspect_plan": "inspect plan.yaml",
    "study": f"study {NET} {MI9} --processors cpu,dsp --trials 4 --warm 2 --sampler random --seed 3 --storage study.log --out study",
    "train": "train digits --model net.py:make --data.image_px 64 --trainer.max_epochs 1 --trainer.threads 1 --out original",
    "train_branched": "train digits --plan plan.yaml --weights original/weights.safetensors --data.image_px 64 "
    "--trainer.max_epochs 1 --trainer.threads 1 --out branched",
    "export": "export plan.yaml --soc mi9 --weights branched/weights.safetensors --out net.nns",
    "export_single": "export plan.yaml --weights branched/weights.safetensors --single whole.onnx",
    "export_original": f"export {NET} --soc mi9 --processor cpu --weights original/weights.safetensors --out original.nns",
    "export_litert": "export plan.yaml --soc mi9 --weights branched/weights.safetensors --format litert --out lite.nns",
    "export_int8": "export plan.yaml --soc mi9 --weights branched/weights.safetensors --format litert --int8 --calibration digits "
    "--calibration-images 8 --max-drop 100 --out int8.nns",
    "quantize": "quantize digits --plan plan.yaml --weights branched/weights.safetensors --data.image_px 64 --images 20 "
    "--calibration 16 --max-drop 100 --out net.tflite",
    "run_virtual": "run net.nns --soc mi9 --mode spatial --clock virtual --repeat 2 --trace run.json --output out.npy",
    "run_sequential": "run net.nns --soc mi9 --mode sequential --clock virtual --repeat 2",
    "run_int8": "run int8.nns --soc mi9 --clock virtual --repeat 1 --output int8.npy",
    "run_failing": "run net.nns --soc mi9 --clock virtual --requests 20 --clients 3 --fail dsp@2 --busy cpu@1:4 --trace requests.json",
    "partition": f"partition {NET} {MI9} --processors cpu,gpu,dsp --out pipe.nns",
    "partition_by_hand": f"partition {NET} {MI9} --split layer1,layer2 --out hand.nns",
    "run_pipeline": "run pipe.nns --soc mi9 --mode pipeline --clock virtual --repeat 20 --trace pipe.json",
    "refuse_file": "inspect nothing.py:make",
    "refuse_soc": f"predict {NET} --soc mi8",
    "refuse_processor": f"search {NET} {MI9} --processors cpu,npu",
    "refuse_plan": "predict bad.yaml --soc mi9",
    "refuse_bundle": "run bad.nns --soc mi9",
    "refuse_recipe": "train digits --model net.py:make --optimizer.lr -1",
    "refuse_macs": f"search {NET} {MI9} --min-macs 3x",
    "refuse_usage": "search",
}
RUNNER = """
import contextlib, io, json, shlex, sys
from nnstretch.cli import main
for line in sys.stdin:
    name, command = json.loads(line)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main([*shlex.split(command), "--json"])
        except SystemExit as ended:
            status = ended.code
    told = [text for text in err.getvalue().splitlines() if text.startswith("nnstretch:")]
    lines = [text for text in told if not text.startswith("nnstretch: epoch ")]  # a line a minute
    print("ANSWER", json.dumps([name, status, out.getvalue(), lines]), file=sys.__stdout__, flush=True)
"""


def answers(tree: Path, names: Collection[str] = tuple(COMMANDS)) -> dict[str, Any]:
    """Return `{command: {status, json, refusal, files}}` of a checkout, commands in their order."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "net.py").write_text(NETWORK, encoding="utf-8")
        (work / "bad.yaml").write_text(BAD_PLAN, encoding="utf-8")
        (work / "bad.nns").write_bytes(b"not a bundle")
        environment = {
            **os.environ,
            "PYTHONPATH": str(tree),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
        }
        data = tree / "tests" / "data"
        lines = [
            json.dumps([name, text.replace("{data}", str(data))])
            for name, text in COMMANDS.items()
            if name in names
        ]
        process = subprocess.Popen(
            [sys.executable, "-c", RUNNER],
            cwd=work,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        collected: dict[str, Any] = {}
        for line in lines:
            before = digests(work)
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answer = next((text for text in process.stdout if text.startswith("ANSWER ")), None)
            if answer is None:
                raise SystemExit(f"{tree}: the process ended at {line}")
            name, status, out, refusal = json.loads(answer.removeprefix("ANSWER "))
            after = digests(work)
            files = {path: digest for path, digest in after.items() if before.get(path) != digest}
            result = steady(json.loads(out), folder) if out.strip() else None
            collected[name] = {
                "status": status,
                "json": result,
                "refusal": [
                    text.replace(folder, "WORK").replace(str(tree), "TREE") for text in refusal
                ],
                "files": files,
            }
            print(f"{tree.name}: {name} {status}", file=sys.stderr)
        process.stdin.close()
        process.wait()
        return collected


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of files whose bytes follow from the computation alone."""
    kinds = {".yaml", ".safetensors", ".nns", ".onnx", ".tflite", ".npy", ".svg"}
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix in kinds and path.is_file()]
    kept = [
        path for path in paths if path.name not in ("resume.safetensors", "bad.nns", "bad.yaml")
    ]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in kept
    }


def steady(value: Any, folder: str) -> Any:
    """Return a JSON value without volatile fields and without the working folder."""
    if isinstance(value, dict):
        return {key: steady(item, folder) for key, item in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [steady(item, folder) for item in value]
    return value.replace(folder, "WORK") if isinstance(value, str) else value


def differences(old: Any, new: Any, where: str, tolerance: float) -> list[str]:
    """Return one line for each place in which two answers differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for key in sorted(old.keys() | new.keys()):
            if tolerance and (
                key == "files" or "sha256" in key or key == "bytes" or "error" in key
            ):
                continue
            if key not in old or key not in new:
                lines.append(f"{where}.{key}: {'new' if key in new else 'gone'}")
            else:
                lines += differences(old[key], new[key], f"{where}.{key}", tolerance)
        return lines
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [
            line for i, (a, b) in pairs for line in differences(a, b, f"{where}[{i}]", tolerance)
        ]
    numbers = isinstance(old, int | float) and isinstance(new, int | float)
    if tolerance and numbers and math.isclose(old, new, rel_tol=tolerance, abs_tol=1e-12):
        return []
    return [] if old == new else [f"{where}: {old!r} -> {new!r}"[:300]]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare with the golden file")
    parser.add_argument(
        "--against", type=Path, metavar="FOLDER", help="compare with another checkout"
    )
    parser.add_argument("--write", action="store_true", help="write the golden file")
    parser.add_argument(
        "--save",
        type=Path,
        metavar="FILE.json",
        help="keep the other checkout's answers, or use them where kept",
    )
    return parser


def main() -> int:
    args = arguments().parse_args()
    new = answers(ROOT)
    if args.write:
        GOLDEN.parent.mkdir(parents=True, exist_ok=True)
        portable = {
            name: {key: item for key, item in answer.items() if key != "files"}
            for name, answer in new.items()
        }
        GOLDEN.write_text(
            json.dumps(portable, indent=None, separators=(",", ":")).replace('},"', '},\n"') + "\n",
            encoding="utf-8",
        )
        return 0
    if args.against and args.save and args.save.exists():
        old = json.loads(args.save.read_text(encoding="utf-8"))
    else:
        old = (
            answers(args.against.resolve())
            if args.against
            else json.loads(GOLDEN.read_text(encoding="utf-8"))
        )
    if args.against and args.save:
        args.save.write_text(json.dumps(old), encoding="utf-8")
    lines = [
        line
        for name in COMMANDS
        for line in differences(old[name], new[name], name, 0.0 if args.against else 1e-6)
    ]
    print("\n".join(lines) or f"{len(COMMANDS)} commands answer as before")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
