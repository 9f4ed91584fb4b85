"""Module + plan -> bundle: every branch and every meeting point a file, checked on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import nn

from nnstretch.bundle.bundle import Bundle, write_bundle
from nnstretch.bundle.manifest import FORMATS, Manifest, Port, Subgraph
from nnstretch.bundle.model_files.check import check_file, member_label
from nnstretch.bundle.variants import merge_bundles
from nnstretch.capture.exported_program import eval_mode
from nnstretch.errors import BrokenFile, UnsupportedOp
from nnstretch.export.int8_accuracy import LabeledAccuracy
from nnstretch.export.subgraph_files import ExportedFiles, litert_files, onnx_files
from nnstretch.export.subgraph_specs import ExportRequest, Progress, SubgraphSpec, subgraph_specs
from nnstretch.export.verify import ExportErrors, verify_files
from nnstretch.files.checked import checked
from nnstretch.files.plan_yaml import check_plan, plan_text
from nnstretch.plan import Plan
from nnstretch.soc import Soc
from nnstretch.soc_instances import processor_kinds
from nnstretch.trial import Trial


@dataclass(frozen=True, slots=True)
class ExportedBundle:
    """What was written."""

    manifest: Manifest
    int8_snr_db: float | None = None
    """Signal-to-noise ratio of the int8 network's output on calibration inputs; None of float."""
    accuracy: LabeledAccuracy | None = None
    """Of int8, where labels judged it."""


@checked
def export(
    module: nn.Module,
    plan: Plan,
    path: Path | str,
    *,
    format: str = "onnx",
    int8: bool = False,
    calibration: Iterable[torch.Tensor] | None = None,
    trial: Trial | None = None,
    soc: Soc | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Manifest:
    """Write a stretched network (`nnstretch.stretch(...)`) as a bundle and return its manifest.

    `format` is onnx or litert; `int8`, of litert, needs `calibration`: inputs of the network, one
    inference each. `trial` adds the predicted latency of every sub-graph, which emulation needs,
    and the name of its chip; `soc` adds the kinds of the chip's processors and has meeting points
    on its CPU, but alone it adds no latency. Each file is run by its own runtime and compared with
    the module (int8 on calibration inputs, others on a random one), and so is the whole; raises
    Mismatch where they differ by more than rounding or int8 has a signal-to-noise ratio below 10
    dB, UnsupportedOp where the format lacks an operator, BadInput for what does not go together,
    such as a trial of another chip.
    """
    check_plan(plan)
    return export_bundle(
        ExportRequest(module, plan, format, int8, calibration, trial, soc, seed, progress), path
    ).manifest


def export_bundle(
    request: ExportRequest, path: Path | str, also: Sequence[tuple[str, Bundle]] = ()
) -> ExportedBundle:
    """Export a bundle, and return it with what a manifest does not say.

    `also` are named bundles whose plans are added as alternatives. Raises BadInput, too.
    """
    with eval_mode(request.module), torch.no_grad():
        specs = subgraph_specs(request)
        exported = files_of(request, specs)
        errors = verify_files(exported, specs, request)
    subgraphs = tuple(subgraph_of(spec, exported, errors, request.format) for spec in specs)
    files = {sub.file: exported.files[sub.name] for sub in subgraphs}
    check_readable(subgraphs, files, request.plan.model)
    manifest = manifest_of(request, specs, exported.ports, subgraphs, errors)
    bundle = merge_bundles(Bundle(manifest, files, str(path)), also)
    write_bundle(Path(path), bundle.manifest, bundle.files)
    return ExportedBundle(bundle.manifest, errors.int8_snr_db, errors.accuracy)


def check_readable(subgraphs: Sequence[Subgraph], files: Mapping[str, bytes], model: str) -> None:
    """Check files, by path, as a session will. Raises UnsupportedOp for one it would refuse."""
    for subgraph in subgraphs:
        try:
            check_file(subgraph, files[subgraph.file], model)
        except BrokenFile as refusal:
            reason = str(refusal).removeprefix(member_label(subgraph, model))
            raise UnsupportedOp(
                f"cannot export {model} as {subgraph.format}, sub-graph"
                f" {subgraph.name}{reason}; try another --format"
            ) from refusal


def files_of(request: ExportRequest, specs: Sequence[SubgraphSpec]) -> ExportedFiles:
    """Export the files of all sub-graphs in the requested format."""
    if request.format == "onnx":
        return onnx_files(request, specs)
    if not request.int8:
        return litert_files(request, specs)
    from nnstretch.export.litert.int8 import int8_files

    return int8_files(request, specs)


def manifest_of(
    request: ExportRequest,
    specs: Sequence[SubgraphSpec],
    ports: Mapping[str, Port],
    subgraphs: tuple[Subgraph, ...],
    errors: ExportErrors,
) -> Manifest:
    """Build the manifest of exported sub-graphs."""
    trial = request.trial
    chip = request.soc.name if request.soc else trial.soc if trial else ""
    return Manifest(
        model=request.plan.model,
        soc=chip or None,
        inputs=(ports[specs[0].sources[0]],),
        outputs=(ports[specs[-1].target],),
        subgraphs=subgraphs,
        max_abs_error=errors.whole,
        sync_us=(
            {i: s.sync_us for i, s in enumerate(trial.segments) if s.sync_us > 0} if trial else {}
        ),
        plan=plan_text(request.plan),
        processor_kinds=processor_kinds(
            request.soc, chain.from_iterable(sub.possible_processors for sub in subgraphs)
        ),
        image_task=request.image_task,
    )


def subgraph_of(
    spec: SubgraphSpec, exported: ExportedFiles, errors: ExportErrors, format: str
) -> Subgraph:
    """Build the manifest's entry of one sub-graph."""
    data = exported.files[spec.name]
    predicted_us = dict(on_placed_processor(spec, spec.predicted_us))
    error_us = dict(on_placed_processor(spec, spec.error_us))
    for processor, alternative in spec.alternatives.items():
        if processor != spec.processor:
            predicted_us[processor] = alternative.latency_us
            error_us[processor] = alternative.error_us
    return Subgraph(
        name=spec.name,
        processor=spec.processor,
        file=f"subgraphs/{spec.name}{FORMATS[format]}",
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
        inputs=tuple(exported.ports[source] for source in spec.sources),
        outputs=(exported.ports[spec.target],),
        role=spec.role,
        format=format,
        segment=spec.segment,
        predicted_us=predicted_us,
        error_us=error_us,
        max_abs_error=errors.subgraphs[spec.name],
    )


def on_placed_processor(spec: SubgraphSpec, time_us: float | None) -> dict[str, float]:
    """Return the prediction on the processor that the sub-graph is placed on."""
    return (
        {spec.processor: time_us} if spec.predicted_us is not None and time_us is not None else {}
    )
