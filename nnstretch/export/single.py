"""The whole branched network as one file, for tools that want one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from nnstretch.errors import BadInput
from nnstretch.export.checks import loud_enough
from nnstretch.export.drafts import OUTPUT, Request
from nnstretch.export.flatbuffer import described
from nnstretch.export.integers import TESTED, checked_inputs
from nnstretch.export.litert import LiteRT, evaluating, to_int8, to_litert
from nnstretch.export.made import description
from nnstretch.export.subgraphs import OnnxFile, apart, difference, spec_of, to_onnx
from nnstretch.files import replacing
from nnstretch.manifest import FORMATS, Port


@dataclass(frozen=True, slots=True)
class Single:
    """What was written."""

    size_bytes: int
    max_abs_error: float
    """From the module, on a random input; of int8 on the first calibration input."""
    int8_snr_db: float | None = None
    """Signal-to-noise ratio of int8 on calibration inputs."""


def format_of(path: Path | str) -> str:
    """Which format a file's name asks for. Raises BadInput."""
    for name, suffix in FORMATS.items():
        if Path(path).suffix == suffix:
            return name
    raise BadInput(f"cannot write {path}, a network in one file, its name must end in {' or '.join(FORMATS.values())}")


def export_single(request: Request, path: Path | str) -> Single:
    """Write the network as one .onnx or .tflite, which `request.format` says; checked as `export` checks a bundle.

    Raises Mismatch, UnsupportedOp and BadInput as `export` does.
    """
    plan = request.plan
    notes = {"model": plan.model, "plan": " | ".join(map(str, plan.segments))}
    with evaluating(request.module), torch.no_grad():
        if request.format == "onnx":
            data, result = single_onnx(request, notes)
        elif request.int8:
            data, result = single_int8(request, notes)
        else:
            data, result = single_float(request, notes)
    with replacing(Path(path)) as aside:
        aside.write_bytes(data)
    return result


def single_onnx(request: Request, notes: dict[str, str]) -> tuple[bytes, Single]:
    x = request.example
    y = request.module(x)
    data = to_onnx(request.module, x, Port(request.plan.segments[0].start, spec_of(x)), Port(OUTPUT, spec_of(y)), notes)
    return data, Single(len(data), difference(y.numpy(), OnnxFile(data).run(x.numpy()), f"ONNX file of {request.plan.model}"))


def single_float(request: Request, notes: dict[str, str]) -> tuple[bytes, Single]:
    x, name = request.example, request.plan.model
    data = described(to_litert(request.module, (x,), name), description(notes))
    return data, Single(len(data), difference(request.module(x).numpy(), LiteRT(data, name).run(x.numpy()), f"LiteRT file of {name}"))


def single_int8(request: Request, notes: dict[str, str]) -> tuple[bytes, Single]:
    name, kept = request.plan.model, []

    def feeds() -> Iterator[tuple[torch.Tensor]]:
        for x in checked_inputs(request):
            if len(kept) < TESTED:
                kept.append(x)
            yield (x,)

    plain = to_litert(request.module, (request.example,), name)
    data = described(to_int8(plain, feeds(), name), description(notes))
    runner = LiteRT(data, name)
    expected: list[np.ndarray] = [request.module(x).numpy() for x in kept]
    actual = [runner.run(x.numpy()) for x in kept]
    error = apart(expected[0], actual[0], f"LiteRT file of {name}")
    return data, Single(len(data), error, loud_enough(expected, actual, name))
