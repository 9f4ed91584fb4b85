"""The whole branched network as one file, for tools that want one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from nnstretch.bundle.image_task import task_text
from nnstretch.bundle.manifest import FORMATS, Port
from nnstretch.capture.exported_program import eval_mode
from nnstretch.errors import BadInput
from nnstretch.export.int8_accuracy import LabeledAccuracy
from nnstretch.export.litert.convert import to_int8, to_litert
from nnstretch.export.litert.flatbuffer import with_description
from nnstretch.export.litert.int8 import TESTED, check_inputs, check_int8_tensors
from nnstretch.export.litert.runner import LiteRTRunner
from nnstretch.export.onnx.convert import (
    OnnxRunner,
    check_close,
    max_abs_difference,
    spec_of,
    to_onnx,
)
from nnstretch.export.subgraph_files import file_description
from nnstretch.export.subgraph_specs import OUTPUT, ExportRequest
from nnstretch.export.verify import judge_int8
from nnstretch.files.atomic import atomic_write


@dataclass(frozen=True, slots=True)
class SingleFile:
    """What was written."""

    size_bytes: int
    max_abs_error: float
    """From the module, on a random input; of int8 on the first calibration input."""
    int8_snr_db: float | None = None
    """Signal-to-noise ratio of int8 on calibration inputs."""
    accuracy: LabeledAccuracy | None = None
    """Of int8, where labels judged it."""


def format_of(path: Path | str) -> str:
    """Return which format a file's name asks for. Raises BadInput."""
    for name, suffix in FORMATS.items():
        if Path(path).suffix == suffix:
            return name
    raise BadInput(
        f"cannot write {path}, a network in one file, its name must end in"
        f" {' or '.join(FORMATS.values())}"
    )


def export_single(request: ExportRequest, path: Path | str) -> SingleFile:
    """Write the network as one .onnx or .tflite, which `request.format` says.

    Checked as `export` checks a bundle.

    Raises Mismatch, UnsupportedOp and BadInput as `export` does.
    """
    plan = request.plan
    notes = {"model": plan.model, "plan": " | ".join(map(str, plan.segments))}
    if request.image_task is not None:
        notes["image_task"] = task_text(request.image_task)
    with eval_mode(request.module), torch.no_grad():
        if request.format == "onnx":
            data, result = single_onnx(request, notes)
        elif request.int8:
            data, result = single_int8(request, notes)
        else:
            data, result = single_float(request, notes)
    with atomic_write(Path(path)) as aside:
        aside.write_bytes(data)
    return result


def single_onnx(request: ExportRequest, notes: dict[str, str]) -> tuple[bytes, SingleFile]:
    """Export the whole network as ONNX and verify it."""
    x = request.example
    y = request.module(x)
    data = to_onnx(
        request.module,
        x,
        Port(request.plan.segments[0].start, spec_of(x)),
        Port(OUTPUT, spec_of(y)),
        notes,
    )
    return data, SingleFile(
        len(data),
        check_close(
            y.numpy(), OnnxRunner(data).run(x.numpy()), f"ONNX file of {request.plan.model}"
        ),
    )


def single_float(request: ExportRequest, notes: dict[str, str]) -> tuple[bytes, SingleFile]:
    """Export the whole network as float32 LiteRT and verify it."""
    x, name = request.example, request.plan.model
    data = with_description(to_litert(request.module, (x,), name), file_description(notes))
    return data, SingleFile(
        len(data),
        check_close(
            request.module(x).numpy(),
            LiteRTRunner(data, name).run(x.numpy()),
            f"LiteRT file of {name}",
        ),
    )


def single_int8(request: ExportRequest, notes: dict[str, str]) -> tuple[bytes, SingleFile]:
    """Export the whole network as int8 LiteRT and verify it."""
    name = request.plan.model
    check_int8_tensors({OUTPUT: request.module(request.example)}, name)
    kept: list[torch.Tensor] = []

    def feeds() -> Iterator[tuple[torch.Tensor]]:
        for x in check_inputs(request):
            if len(kept) < TESTED:
                kept.append(x)
            yield (x,)

    plain = to_litert(request.module, (request.example,), name)
    data = with_description(to_int8(plain, feeds(), name), file_description(notes))
    runner = LiteRTRunner(data, name)
    expected: list[np.ndarray] = [request.module(x).numpy() for x in kept]
    actual = [runner.run(x.numpy()) for x in kept]
    error = max_abs_difference(expected[0], actual[0], f"LiteRT file of {name}")
    return data, SingleFile(len(data), error, *judge_int8(expected, actual, request, runner.run))
