"""What is installed here, what is missing, and whether it works.

  nnstretch doctor
  nnstretch doctor --seconds 0 --json      # without the measurement of overlap

Lists versions, the extras and the command that brings each missing one, cores and their kind,
settings of threads, whether the inner loops of the search are compiled; runs a small network on
every runtime that is here and compares it with numpy; then measures for 20 seconds whether two
branches really run at once. Exit status 0 where at least one runtime computes right, else 1.
"""

from __future__ import annotations

import argparse
import os
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.doctor.extras import install_command, missing_distributions, read_extras
from nnstretch.cli.progress import progress
from nnstretch.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

THREAD_SETTINGS = (
    *("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
    *("KMP_BLOCKTIME", "GOMP_SPINCOUNT"),
)
PACKAGES = (
    *("nnstretch", "numpy", "torch", "torchvision", "timm", "onnx", "onnxruntime", "openvino"),
    *("ai-edge-litert", "litert-torch", "pytorch-lightning", "optuna"),
)
NOT_FOR_USE = ("all", "dev", "docs", "testing")
"""Extras of people who work on the package."""
NOT_COMPILED = (
    "by arrays, slower; they are compiled where `cc` is there when nnstretch is installed"
)
QUOTA = Path("/sys/fs/cgroup/cpu.max")
MAX_SECONDS = 3600


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        metavar="N",
        help="how long two branches are measured at once; 0 leaves it out (default 20)",
    )


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data. Raises BadInput for an odd time."""
    if not 0 <= args.seconds <= MAX_SECONDS:
        raise BadInput(f"--seconds is {args.seconds:g}, command line, needed is 0 to {MAX_SECONDS}")
    from nnstretch.cli.doctor.runtimes import check_overlap, check_runtimes
    from nnstretch.stretch.search.compiled.library import load_kernels

    with progress("runtimes") as tick:
        checks, networks = check_runtimes(tick)
    measured = None
    if networks and args.seconds:
        backend = next(iter(networks))
        with progress("overlap") as tick:
            measured = check_overlap(backend, networks[backend], args.seconds, tick)
    return {
        "usable": bool(networks),
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": installed_versions(),
        "processor": describe_processor(),
        "threads": {name: os.environ[name] for name in THREAD_SETTINGS if name in os.environ},
        "compiled_search": load_kernels() is not None,
        "extras": describe_extras(),
        "runtimes": [asdict(check) for check in checks],
        "overlap": None if measured is None else asdict(measured),
    }


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that matter, of those that are installed."""
    versions: dict[str, str] = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def describe_processor() -> dict[str, Any]:
    """Return the cores that this process may use, in groups of equal ones."""
    from nnstretch.profile.machine import clusters, description

    groups: list[dict[str, Any]] = []
    for cluster in clusters():
        mhz = None if cluster.max_khz is None else cluster.max_khz // 1000
        groups.append({"cores": list(cluster.cores), "max_mhz": mhz})
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"name": description(), "clusters": groups, "quota_cores": read_quota(), "load": load}


def read_quota(path: Path = QUOTA) -> float | None:
    """Return how many cores' time a container may use; None where there is no such limit."""
    try:
        quota_us, period_us = path.read_text(encoding="ascii").split()
        return int(quota_us) / int(period_us)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def describe_extras() -> list[dict[str, Any]]:
    """Return each extra with what it lacks and the command that brings it."""
    rows: list[dict[str, Any]] = []
    for extra, distributions in sorted(read_extras().items()):
        if extra not in NOT_FOR_USE:
            missing = missing_distributions(distributions)
            command = install_command(extra) if missing else None
            rows.append({"extra": extra, "missing": missing, "command": command})
    return rows


def show(result: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    from rich.table import Table

    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    lines = [f"Python {result['python']} on {result['system']}", versions]
    lines += processor_lines(result["processor"])
    settings = ", ".join(f"{name}={value}" for name, value in result["threads"].items())
    lines.append(f"thread settings: {settings or 'none in the environment'}")
    loops = "compiled" if result["compiled_search"] else NOT_COMPILED
    lines.append(f"inner loops of the search: {loops}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    extras = Table("extra", "missing", "command")
    for row in result["extras"]:
        extras.add_row(row["extra"], ", ".join(row["missing"]) or "-", row["command"] or "-")
    console.print(extras)
    runtimes = Table("runtime", "computes right", "why not")
    for check in result["runtimes"]:
        runtimes.add_row(check["backend"], "yes" if check["correct"] else "no", check["why"] or "-")
    console.print(runtimes)
    for line in verdict_lines(result):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def processor_lines(processor: dict[str, Any]) -> list[str]:
    """Return what is known of the processor as lines."""
    groups: list[str] = []
    for cluster in processor["clusters"]:
        clock = "" if cluster["max_mhz"] is None else f" at up to {cluster['max_mhz']} MHz"
        groups.append(f"{len(cluster['cores'])} equal cores{clock}")
    lines = [f"{processor['name']}: {', '.join(groups)}"]
    if processor["quota_cores"] is not None:
        lines.append(f"this container may use the time of {processor['quota_cores']:g} cores")
    return lines


def verdict_lines(result: dict[str, Any]) -> list[str]:
    """Return how far two branches overlap, and whether the install is usable."""
    lines: list[str] = []
    if measured := result["overlap"]:
        lines.append(
            f"two branches at once ({measured['backend']}): {measured['speedup']:.2f} times one"
            f" after another, of {measured['possible']:.2f} possible ({measured['least']:.2f} to"
            f" {measured['most']:.2f} in {measured['checks']} checks)"
        )
        if measured["why"]:
            lines.append(f"why not more: {measured['why']}")
    good = "usable" if result["usable"] else "not usable, no runtime computes right"
    return [*lines, good]
