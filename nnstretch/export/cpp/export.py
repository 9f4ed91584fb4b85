"""A network or a plan as a folder of C++, built and compared where a compiler is at hand."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from nnstretch.capture.checks.random_operators import check_repeatable
from nnstretch.capture.example_inputs import draw_inputs
from nnstretch.capture.exported_program import eval_mode
from nnstretch.capture.torch_export import CapturedNetwork, trace
from nnstretch.export.cpp.branch_paths import BRANCH, with_branch_paths
from nnstretch.export.cpp.build import BUILD_FOLDER, build, compare, missing_tools
from nnstretch.export.cpp.layer_lists.layer_lists import LayerLists, list_layers
from nnstretch.export.cpp.program import CallGroup, CppProgram
from nnstretch.export.cpp.project import WRITTEN, check_folder, write_project
from nnstretch.export.cpp.restored_folder import restored_on_failure
from nnstretch.export.cpp.translate import Placement, translate
from nnstretch.export.subgraph_specs import ExportRequest
from nnstretch.plan import Plan


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
    lists: LayerLists | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
    name: str | None = None,
) -> CppExport:
    """Write a stretched network as C++ that builds where no Python is.

    `lists` are those of the network as its author wrote it; None lists the stretched one. `name` is
    what the program calls the network, by default the model's name.

    Raises UnsupportedOp with all operators that cannot be translated, BadInput where the folder
    holds something else or the build fails, Mismatch where the program computes something else.
    """
    example = request.example
    captured = with_branch_paths(trace(request.module, example, request.plan.model))
    placement = placement_of(request.plan)
    lists = lists or list_layers(request.module, captured, placement)
    label = label_of(request.plan)
    program = translate(captured.graph, captured.weights, granularity, placement, label)
    program = with_labels(program, label)
    program = replace(program, name=name or program.name)
    return write_program(program, request.module, (example,), folder, build_here, lists, progress)


def export_whole_cpp(
    module: nn.Module,
    captured: CapturedNetwork,
    folder: Path,
    granularity: str = "layer",
    build_here: bool = True,
    progress: Callable[[int, int], object] = lambda done, total: None,
    name: str | None = None,
) -> CppExport:
    """Write a network with several inputs or outputs, of which no plan can be made.

    `name` is what the program calls it, by default the model's name.

    Raises as `export_cpp` does.
    """
    check_repeatable(captured.graph, captured.graph.name)
    program = translate(captured.graph, captured.weights, granularity)
    program = replace(program, name=name or program.name)
    drawn = draw_inputs(captured.graph, 0)
    examples = tuple(drawn[value.name] for value in captured.graph.inputs)
    lists = list_layers(module, captured)
    return write_program(program, module, examples, folder, build_here, lists, progress)


def write_program(
    program: CppProgram,
    module: nn.Module,
    examples: tuple[torch.Tensor, ...],
    folder: Path,
    build_here: bool,
    lists: LayerLists,
    progress: Callable[[int, int], object],
) -> CppExport:
    """Write a program's folder, build it, and compare it with the module on the examples.

    Where that fails, the folder is as it was.
    """
    with eval_mode(module), torch.no_grad():
        # Some networks write into their input.
        expected = module(*(example.clone() for example in examples))
    progress(1, 3)
    results = torch.utils._pytree.tree_leaves(expected)
    tensors = [result for result in results if isinstance(result, torch.Tensor)]
    arrays: list[np.ndarray] = [tensor.detach().numpy() for tensor in tensors]
    inputs: list[np.ndarray] = [example.numpy() for example in examples]
    files = {path: text.encode() for path, text in lists.files()}
    why = "--no-build" if not build_here else ", ".join(missing_tools())
    error = None
    check_folder(folder)
    with restored_on_failure(folder, (*WRITTEN, BUILD_FOLDER)):
        arena = write_project(program, folder, files | example_files(inputs, arrays))
        progress(2, 3)
        if not why:
            error = compare(build(folder), inputs, arrays, program.name)
    progress(3, 3)
    sizes = (arena.size * 4, arena.peak_alive * 4, arena.least_size * 4)
    return CppExport(folder, program, *sizes, error, why)


def example_files(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> dict[str, bytes]:
    """Return files of an input and of what the module computes from it, by their paths.

    Whole numbers stay what they are as inputs; results are floats, as the runner writes them.
    """
    files: dict[str, bytes] = {}
    for kind, arrays in (("input", inputs), ("output", outputs)):
        for number, array in enumerate(arrays):
            text = io.BytesIO()
            kept = np.int64 if kind == "input" and array.dtype.kind == "i" else np.float32
            np.save(text, np.asarray(array, kept, order="C"))
            files[f"example/{kind}{number}.npy"] = text.getvalue()
    return files


def placement_of(plan: Plan) -> Placement:
    """Return where a plan puts a module, by its path in the stretched network."""

    def placement(module: str) -> str:
        place = BRANCH.match(module)
        if place is None:
            return ""
        segment = plan.segments[int(place["segment"])]
        return segment.branches[int(place["branch"])].processor

    return placement


def label_of(plan: Plan) -> Callable[[str], str]:
    """Return what gives a path in the stretched network as its author knows it.

    Where there are branches, end of the segment and processor stand before the original's path.
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

    return label


def with_labels(program: CppProgram, label: Callable[[str], str]) -> CppProgram:
    """Return a program whose tasks and calls carry the paths of the original network."""
    groups: list[CallGroup] = []
    for group in program.groups:
        calls = tuple(replace(call, module=label(call.module)) for call in group.calls)
        labelled = replace(group, calls=calls)
        name = labelled.layer_name if len(program.groups) > 1 else group.name
        groups.append(replace(labelled, name=name))
    return replace(program, groups=tuple(groups))
