"""A network or a plan as a folder of C++, built and compared where a compiler is at hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from nnstretch.capture.exported_program import eval_mode
from nnstretch.capture.torch_export import trace
from nnstretch.export.cpp.build import build, compare, missing_tools
from nnstretch.export.cpp.program import CallGroup, CppProgram
from nnstretch.export.cpp.project import write_project
from nnstretch.export.cpp.translate import Placement, translate
from nnstretch.export.subgraph_specs import ExportRequest
from nnstretch.plan import Plan

BRANCH = re.compile(r"segments\.(?P<segment>\d+)\.branches\.(?P<branch>\d+)")
"""Before the path of a module inside a branch of a stretched network."""


@dataclass(frozen=True, slots=True)
class CppExport:
    """What was written."""

    folder: Path
    program: CppProgram
    arena_bytes: int
    """Working memory of one inference."""
    peak_alive_bytes: int
    """Most bytes alive at once where calls run one after the other."""
    least_arena_bytes: int
    """What no arena is smaller than, whatever tasks run at once."""
    max_abs_error: float | None
    """From the module, on a random input; None where nothing was built."""
    not_built: str = ""
    """Why nothing was built; empty where it was."""


def export_cpp(
    request: ExportRequest,
    folder: Path,
    granularity: str = "layer",
    build_here: bool = True,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> CppExport:
    """Write a stretched network as C++ that builds where no Python is.

    Raises UnsupportedOp with all operators that cannot be translated, BadInput where the folder
    holds something else or the build fails, Mismatch where the program computes something else.
    """
    example = request.example
    with eval_mode(request.module), torch.no_grad():
        expected = request.module(example)
    captured = trace(request.module, example, request.plan.model)
    placement = placement_of(request.plan)
    program = with_labels(
        translate(captured.graph, captured.weights, granularity, placement), request.plan
    )
    progress(1, 3)
    arena = write_project(program, folder)
    progress(2, 3)
    why = "--no-build" if not build_here else ", ".join(missing_tools())
    error = None
    if not why:
        results = expected if isinstance(expected, tuple | list) else (expected,)
        arrays: list[np.ndarray] = [result.numpy() for result in results]
        error = compare(build(folder), [example.numpy()], arrays, request.plan.model)
    progress(3, 3)
    sizes = (arena.size * 4, arena.peak_alive * 4, arena.least_size * 4)
    return CppExport(folder, program, *sizes, error, why)


def placement_of(plan: Plan) -> Placement:
    """Return where a plan puts a module, by its path in the stretched network."""

    def placement(module: str) -> str:
        place = BRANCH.match(module)
        if place is None:
            return ""
        segment = plan.segments[int(place["segment"])]
        return segment.branches[int(place["branch"])].processor

    return placement


def with_labels(program: CppProgram, plan: Plan) -> CppProgram:
    """Return a program whose tasks and calls carry the paths of the original network.

    Where there are branches, end of the segment and processor stand before them.
    """
    several = len(plan.segments) > 1 or plan.segments[0].branched

    def label(path: str) -> str:
        place = BRANCH.match(path)
        if place is None:
            return "" if not several else re.sub(r"^segments\.(\d+)$", meeting_name, path)
        inner = path[place.end() :].lstrip(".")
        if not several:
            return inner
        segment = plan.segments[int(place["segment"])]
        processor = segment.branches[int(place["branch"])].processor
        return "/".join(part for part in (segment.end, processor, inner) if part)

    def meeting_name(place: re.Match[str]) -> str:
        return f"{plan.segments[int(place[1])].end}/merge"

    groups: list[CallGroup] = []
    for group in program.groups:
        calls = tuple(replace(call, module=label(call.module)) for call in group.calls)
        first = calls[0]
        name = first.module or first.value if len(program.groups) > 1 else group.name
        groups.append(replace(group, name=name, calls=calls))
    return replace(program, groups=tuple(groups))
