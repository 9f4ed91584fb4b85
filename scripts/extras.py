"""Build the wheel, install each extra alone into a fresh environment, and try every verb there.

  python scripts/extras.py --out docs/results/extras.md
  python scripts/extras.py --extras base,run,export --work /tmp/extras

Each environment is made by uv in the folder of --work and removed again. A verb either does its
work, or refuses in one line that names the extra to install; anything else is a fault and ends the
script in exit status 1. `serve` has done its work when it answered and then ended by a signal.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from nnstretch.bench.markdown import markdown_table
from nnstretch.bundle.bundle import write_bundle
from nnstretch.cli.doctor.probe_bundle import probe_bundle

ROOT = Path(__file__).parents[1]
EXTRAS = (
    *("base", "run", "capture", "predict", "stretch", "partition", "export", "bench", "profile"),
    *("train", "study", "litert", "quantize", "openvino", "serve", "sweep", "optimal"),
    "completion",
)
NET = "torchvision:resnet18?num_classes=10"
SHAPE = ("--input", "1,3,32,32")
TASKS = str(ROOT / "tests/data/task_graphs/sparse.stg")
WORKLOAD = str(ROOT / "examples/cedr/signal.yaml")
PUBLISHED = str(ROOT / "tests/data/nn_stretch/example_R-34-CD.yaml")
COMMANDS: dict[str, tuple[str, ...]] = {
    "inspect": ("inspect", NET, *SHAPE),
    "import": ("import", PUBLISHED, "--out", "imported.yaml"),
    "predict": ("predict", NET, *SHAPE, "--soc", "mi9"),
    "search": ("search", NET, *SHAPE, "--soc", "mi9", "--processors", "cpu,dsp", "--out", "s.yaml"),
    "study": ("study", NET, *SHAPE, "--soc", "mi9", "--trials", "2"),
    "study capacity": (
        *("study", "capacity", NET, "--recipe", "digits", "--depths", "1", "--widths", "0.5"),
        *("--epochs", "1", "--data.image_px", "16", "--out", "capacity"),
    ),
    "train": ("train", "digits", "--model", NET, "--trainer.max_epochs", "1", "--out", "trained"),
    "export": ("export", "plan.yaml", "--out", "exported.nns"),
    "export litert": ("export", "plan.yaml", "--format", "litert", "--out", "litert.nns"),
    "partition": ("partition", NET, *SHAPE, "--soc", "mi9", "--out", "pipe.nns"),
    "run": ("run", "net.nns", "--clock", "real", "--repeat", "20"),
    "run openvino": ("run", "net.nns", "--backend", "openvino", "--clock", "real"),
    "bench": ("bench", "plan.yaml", "--seconds", "5"),
    "quantize": ("quantize", "digits", "--model", NET, "--weights", "w.st", "--out", "n.tflite"),
    "profile": ("profile", "--out", "host", "--budget-s", "90"),
    "accelerate": ("accelerate", NET, *SHAPE, "--accelerator", "ethos-u55-128", "--out", "chip"),
    "schedule": ("schedule", TASKS, "--processors", "2", "--trace", "trace.json"),
    "schedule optimum": ("schedule", TASKS, "--processors", "2", "--optimum"),
    "simulate": ("simulate", WORKLOAD),
    "simulate measure": ("simulate", "measure", "workload.yaml", "--out", "costs.json"),
    "simulate sweep": ("simulate", "sweep", "sweep.yaml", "--workers", "1", "--out", "swept"),
    "serve": ("serve", "net.nns", "--socket", "net.sock"),
    "report": ("report", "trace.json", "--out", "page.html"),
    "doctor": ("doctor", "--seconds", "0"),
    "completion": ("--print-completion", "bash"),
}
JUDGES = ("doctor", "profile")
"""They end in status 1, without a refusal, where a busy host spoils what they measured."""
LONGEST_S = 600
PLAN = f"""format: 1
model: {NET}
input: [1, 3, 32, 32]
merge: concat
segments:
- {{end: layer1, processor: cpu}}
- end: layer2
  branches: [{{processor: cpu, width: 64}}, {{processor: dsp, width: 64}}]
- {{end: output, processor: cpu}}
"""
TOY_WORKLOAD = """pool: {cpu: 1}
applications: [{name: net, model: net.nns, arrivals: {period_ms: 5}, instances: 3}]
"""
SWEEP = f"""workload: {WORKLOAD}
pools: [{{cpu: 3, fft: 1}}]
policies: [eft]
rates: [1]
trials: 1
"""
FILES = {"plan.yaml": PLAN, "workload.yaml": TOY_WORKLOAD, "sweep.yaml": SWEEP}


@dataclass(frozen=True, slots=True)
class Environment:
    """An extra installed alone."""

    extra: str
    packages: int
    size_mb: float
    install_s: float
    verbs: dict[str, str]
    """By verb: seconds, the extra that its one line names, or FAULT."""
    faults: tuple[str, ...]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--extras", default=",".join(EXTRAS), help="which, separated by commas")
    parser.add_argument("--verbs", default=",".join(COMMANDS), help="which, separated by commas")
    parser.add_argument("--out", type=Path, help="page to write")
    parser.add_argument("--work", type=Path, help="folder of the environments")
    return parser


def uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else "uv"


def build_wheel(folder: Path) -> Path:
    command = [uv(), "build", "--quiet", "--wheel", "-o", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


def folder_mb(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def try_verb(program: Path, command: tuple[str, ...], folder: Path) -> tuple[str, str]:
    """Return what came of a verb, and its last words where that is a fault."""
    start_s = perf_counter()
    with subprocess.Popen(
        [str(program), *command],
        cwd=folder,
        env=plain_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        if command[0] == "serve":
            stop_when_ready(process, folder / "net.sock")
        try:
            line = process.communicate(timeout=LONGEST_S)[1].strip()
        except subprocess.TimeoutExpired:
            process.kill()
            return "FAULT", f"{' '.join(command)}: did not end in {LONGEST_S} s"
    seconds = perf_counter() - start_s
    judged = command[0] in JUDGES and process.returncode == 1 and not line
    if process.returncode == 0 or judged:
        return f"{seconds:.1f} s", ""
    if process.returncode == 1 and "\n" not in line and "pip install" in line:
        return line.rpartition("nnstretch")[2].rstrip("'"), ""
    return "FAULT", f"{' '.join(command)}: {line[-300:]}"


def stop_when_ready(process: subprocess.Popen[str], path: Path) -> None:
    """Ask a server on a Unix socket to end as soon as it answers; one that ended before is left."""
    until_s = perf_counter() + LONGEST_S
    while process.poll() is None and perf_counter() < until_s:
        with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
            client.settimeout(LONGEST_S)
            client.connect(str(path))
            client.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
            if client.recv(1):
                process.terminate()
                return
        time.sleep(0.05)


def plain_environment() -> dict[str, str]:
    """Return the environment variables without those that show Python other packages."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def try_extra(extra: str, wheel: Path, work: Path, verbs: list[str]) -> Environment:
    environment, folder = work / f"env-{extra}", work / f"try-{extra}"
    folder.mkdir(parents=True, exist_ok=True)
    bundle = probe_bundle("onnx")
    write_bundle(folder / "net.nns", bundle.manifest, bundle.files)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    subprocess.run([uv(), "venv", "--quiet", "--clear", str(environment)], check=True)
    python = environment / "bin" / "python"
    wanted = "nnstretch" if extra == "base" else f"nnstretch[{extra}]"
    start_s = perf_counter()
    install = [uv(), "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([*install, f"{wanted} @ file://{wheel}"], check=True)
    install_s = perf_counter() - start_s
    listing = subprocess.run(
        [uv(), "pip", "freeze", "--python", str(python)], check=True, capture_output=True, text=True
    )
    results: dict[str, str] = {}
    faults: list[str] = []
    for verb in verbs:
        command = COMMANDS[verb]
        if verb == "quantize":
            trained = folder / "trained" / "weights.safetensors"
            command = tuple(str(trained) if word == "w.st" else word for word in command)
        results[verb], fault = try_verb(environment / "bin" / "nnstretch", command, folder)
        print(f"{extra}: {verb}: {results[verb]} {fault}", flush=True)
        if fault:
            faults.append(f"{extra}: {fault}")
    size_mb = folder_mb(environment)
    shutil.rmtree(environment)
    shutil.rmtree(folder)
    count = len(listing.stdout.split("\n")) - 1
    return Environment(extra, count, size_mb, install_s, results, tuple(faults))


def page(environments: list[Environment], verbs: list[str]) -> str:
    """Return the page: a column for each extra."""
    rows: list[list[str]] = [
        ["packages", *(str(env.packages) for env in environments)],
        ["MB", *(f"{env.size_mb:,.0f}" for env in environments)],
        ["seconds to install", *(f"{env.install_s:.0f}" for env in environments)],
    ]
    rows += [[f"`{verb}`", *(env.verbs[verb] for env in environments)] for verb in verbs]
    text = (
        "# Each extra alone",
        "",
        "The wheel, built and installed with one extra into a fresh environment; then every verb in"
        " an empty folder. Seconds: it did its work, imports and their first compilation included."
        " `[extra]`: it refused in one line that names this extra. Packages came from a cache, so"
        " seconds of installing are those of unpacking; MB are the environment after all verbs,"
        f" {os.cpu_count()} cores computed and other programs shared them.",
        "",
        "Made by `python scripts/extras.py --out docs/results/extras.md`.",
        "",
        *markdown_table(["", *(env.extra for env in environments)], rows),
        "",
    )
    return "\n".join(text)


def main() -> int:
    args = arguments().parse_args()
    verbs = args.verbs.split(",")
    work = args.work or Path(tempfile.mkdtemp(prefix="extras-"))
    work.mkdir(parents=True, exist_ok=True)
    wheel = build_wheel(work / "wheel")
    environments: list[Environment] = []
    for extra in args.extras.split(","):
        environments.append(try_extra(extra, wheel, work, verbs))
        if args.out:
            args.out.write_text(page(environments, verbs))
    faults = [fault for env in environments for fault in env.faults]
    print("\n".join(faults) or "no fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
