"""`export --format cpp`: a folder that builds where no Python is."""

from __future__ import annotations

import argparse
from collections import Counter
from hashlib import sha256
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from nnstretch.cli.progress import progress
from nnstretch.errors import BadInput

if TYPE_CHECKING:
    from nnstretch.cli.loaded_model import LoadedModel
    from nnstretch.export.cpp.export import CppExport
    from nnstretch.export.subgraph_specs import ExportRequest

FORMAT = "cpp"
GRANULARITIES = ("layer", "branch", "network", "channel")


def add_cpp_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `--format cpp` takes."""
    parser.add_argument(
        "--granularity",
        choices=GRANULARITIES,
        help=(
            "tasks of --format cpp: one fused layer (default), all layers of a branch, the whole"
            " network, or a convolution for every pair of channels (as CEDR's translator)"
        ),
    )
    parser.add_argument(
        "--name",
        help=(
            "what --format cpp calls the network in its namespace, target and C symbol (default:"
            " MODEL's): networks in one program need names of their own"
        ),
    )
    parser.add_argument(
        "--no-build",
        action="store_true",
        help="write --format cpp without building and comparing it",
    )


def check_cpp(args: argparse.Namespace) -> None:
    """Refuse options that do not go together, before anything is loaded. Raises BadInput."""
    if args.format != FORMAT:
        only_here = {"granularity": args.granularity, "no-build": args.no_build, "name": args.name}
        for option, value in only_here.items():
            if value:
                raise BadInput(
                    f"--{option} with --format {args.format}, command line, only --format cpp has"
                    " it"
                )
        return
    if args.out is None:
        raise BadInput("nothing to write, command line, --format cpp writes a folder: --out FOLDER")
    for option, value in (("--single", args.single), ("--also", args.also)):
        if value:
            raise BadInput(f"{option} with --format cpp, command line, it writes a folder: --out")
    from nnstretch.export.cpp.project import check_folder

    check_folder(Path(args.out))


def write_cpp(
    args: argparse.Namespace, request: ExportRequest, subject: LoadedModel
) -> dict[str, Any]:
    """Write the folder and return what it holds as JSON data."""
    from nnstretch.export.cpp.export import export_cpp
    from nnstretch.export.cpp.layer_lists.layer_lists import list_layers

    granularity = args.granularity or GRANULARITIES[0]
    folder = Path(args.out)
    lists = None if subject.plan else list_layers(subject.module, subject.captured)
    build_here = not args.no_build
    with progress("exporting") as tick:
        written = export_cpp(request, folder, granularity, build_here, lists, tick, args.name)
    predicted_ms = request.trial.latency_us / 1000 if request.trial else None
    return result_of(args, written, predicted_ms)


def write_whole_cpp(args: argparse.Namespace, subject: LoadedModel) -> dict[str, Any]:
    """Write the folder of a network with several inputs or outputs, and return it as JSON data.

    Raises BadInput where a chip or a processor is named: no plan places its tasks.
    """
    from nnstretch.cli.export.whole_network import why_whole, with_weights
    from nnstretch.export.cpp.export import export_whole_cpp

    for option, value in (("--soc", args.soc), ("--processor", args.processor)):
        if value:
            raise BadInput(
                f"{option} {value} with --format cpp of {args.model}, command line,"
                f" {why_whole(subject.graph)}: its runner places every task"
            )
    module, captured = subject.module, subject.captured
    if args.weights is not None:
        module, captured = with_weights(args, subject)
    granularity = args.granularity or GRANULARITIES[0]
    with progress("exporting") as tick:
        written = export_whole_cpp(
            module, captured, Path(args.out), granularity, not args.no_build, tick, args.name
        )
    return result_of(args, written, None)


def result_of(
    args: argparse.Namespace, written: CppExport, predicted_ms: float | None
) -> dict[str, Any]:
    """Return what was exported as JSON data; a sub-graph is a task."""
    source = written.folder / "network.cpp"
    data = source.read_bytes()
    digest = sha256(data).hexdigest()
    tasks: list[dict[str, Any]] = []
    for group in written.program.groups:
        tasks.append(
            {
                "name": group.name,
                "processor": group.placement or None,
                "file": source.name,
                "bytes": len(data),
                "sha256": digest,
                "max_abs_error": written.max_abs_error,
                "api": group.api or None,
                "calls": len(group.calls),
                "macs": sum(call.macs for call in group.calls),
            }
        )
    return {
        "bundle": args.out,
        "format": FORMAT,
        "int8": False,
        "max_abs_error": written.max_abs_error,
        "int8_snr_db": None,
        "calibration_images": None,
        "predicted_ms": predicted_ms,
        "single": None,
        "plans": [],
        "not_built": written.not_built or None,
        "arena_bytes": written.arena_bytes,
        "peak_alive_bytes": written.peak_alive_bytes,
        "least_arena_bytes": written.least_arena_bytes,
        "weights_bytes": (written.folder / "weights.bin").stat().st_size,
        "subgraphs": tasks,
    }


def show_cpp(result: dict[str, Any], console: Any) -> None:
    """Print the result for people."""
    folder = result["bundle"]
    console.print(
        f"{folder}  {len(result['subgraphs'])} tasks, {result['weights_bytes'] / 1e6:,.1f} MB of"
        f" weights, {result['arena_bytes'] / 1e6:,.2f} MB of working memory an inference"
        f" ({result['peak_alive_bytes'] / 1e6:,.2f} MB alive at most in turn,"
        f" {result['least_arena_bytes'] / 1e6:,.2f} MB the least where tasks run at once)"
    )
    if counts := Counter(task["api"] for task in result["subgraphs"] if task["api"]):
        console.print(", ".join(f"{count:,} {api}" for api, count in counts.items()))
    if result["not_built"]:
        console.print(f"not built here ({result['not_built']}), so not compared with the module")
        source, build = quote(folder), quote(f"{folder}/build")
        command = f"  cmake --preset release -S {source} && cmake --build {build}"
        console.print(command, soft_wrap=True)
    else:
        console.print(f"built; differs from the module by {result['max_abs_error']:.1e} at most")
        console.print(f"  {quote(f'{folder}/build/run')} --help", soft_wrap=True)
