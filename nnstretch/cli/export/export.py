"""Export a network or a plan.

One file per sub-graph, ONNX or LiteRT, in one bundle, each checked against the module.

Weights come from --weights (safetensors, as `nnstretch train` writes them); without, they are those
the model starts with. --soc adds the predicted latency of every sub-graph, which emulation needs.
--int8 measures the ranges of activations on calibration images; sub-graphs that touch share a
scale, so merges change no bit. Where --calibration is the recipe that the network was trained by,
its held-out images judge int8 by accuracy (--max-drop); elsewhere its signal-to-noise ratio does
(--min-snr).

  nnstretch export plan.yaml --weights runs/digits/weights.safetensors --soc mi9 --out net.nns
  nnstretch export torchvision:resnet18 --soc mi9 --processor dsp --out original.nns
  nnstretch export plan.yaml --format litert --int8 --calibration photos --out net.nns
  nnstretch export plan.yaml --single net.onnx
  nnstretch export torchvision:resnet18 --format cpp --out r18     # C++17, builds without Python
  nnstretch export b.yaml --soc mi9 --out net.nns --also a.nns     # two plans: main, and a
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.bundle.variants import load_variants, merge_bundles
from nnstretch.cli.arguments import CALIBRATION_IMAGES, naming_fallback
from nnstretch.cli.export.cpp import FORMAT, check_cpp, write_cpp, write_whole_cpp
from nnstretch.cli.export.options import arguments as arguments
from nnstretch.cli.export.options import check, check_fallback
from nnstretch.cli.export.result import result_of
from nnstretch.cli.export.result import show as show
from nnstretch.cli.export.whole_network import export_whole_network, is_whole
from nnstretch.cli.loaded_model import LoadedModel, is_plan, load_model_argument, load_soc_of
from nnstretch.cli.output_path import check_writable
from nnstretch.cli.progress import calibration_json, progress
from nnstretch.errors import BadInput
from nnstretch.graph import InputShape

if TYPE_CHECKING:
    from nnstretch.bundle.bundle import Bundle
    from nnstretch.export.subgraph_specs import ExportRequest
    from nnstretch.soc import Soc
    from nnstretch.stretch.lowering.lower import LoweredNetwork
    from nnstretch.trial import Trial

UNTRAINED = (
    "without --weights the branches have what the network starts with, they were not trained"
)
HELD_OUT_IMAGES = 1000
"""On which int8 is judged; all of a smaller data set."""


@dataclass(frozen=True)
class ExportTargets:
    """What is written where."""

    out: Path | None = None
    """A bundle; None for none."""
    also: Sequence[tuple[str, Bundle]] = ()
    """Bundles whose plans join it, by name."""
    single: Path | None = None
    """One file of the whole network; None for none."""


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data."""
    check_cpp(args)
    check(args)
    targets = targets_of(args)
    subject = load_model_argument(args.model, judged_input(args), args.outputs, args.weights)
    check_fallback(args, subject.plan)
    soc = soc_of(args, subject)
    written = write_subject(args, subject, targets, soc)
    source = {} if soc is None else calibration_json(soc)
    untrained = subject.plan is not None and args.weights is None
    notes = [*subject.captured.notes, *([UNTRAINED] if untrained else [])]
    notes += [*notes_on_size(args, subject), *written["notes"]]
    return written | source | {"notes": notes}


def judged_input(args: argparse.Namespace) -> Sequence[InputShape]:
    """Return --input; without it, that on which the weights of a network were judged, if known."""
    if args.input or args.weights is None or is_plan(args.model):
        return args.input  # type: ignore[no-any-return]
    from nnstretch.stretch.weights.weights_file import read_image_task

    task = read_image_task(args.weights)
    return (InputShape((1, 3, task.crop_px, task.crop_px)),) if task and task.crop_px else ()


def notes_on_size(args: argparse.Namespace, subject: LoadedModel) -> list[str]:
    """Return that the weights were judged on images of another size, where they were."""
    from nnstretch.stretch.weights.weights_file import read_image_task

    task = read_image_task(args.weights) if args.weights else None
    shape = subject.graph.inputs[0].spec.shape
    if task is None or not task.crop_px or shape[2:] == (task.crop_px, task.crop_px):
        return []
    return [
        f"the weights were judged on images of {task.crop_px} px, here {'x'.join(map(str, shape))}"
        " goes in: their accuracy is not the one that was measured"
    ]


def soc_of(args: argparse.Namespace, subject: LoadedModel) -> Soc | None:
    """Return the chip whose times are predicted: as named, else the plan's own, if it has one."""
    return load_soc_of(args.soc) if args.soc else subject.load_own_soc()


def write_subject(
    args: argparse.Namespace, subject: LoadedModel, targets: ExportTargets, soc: Soc | None
) -> dict[str, Any]:
    """Write a network in the form that suits it; return it as JSON data, with notes on memory."""
    if is_whole(subject) and args.format == FORMAT:
        return write_whole_cpp(args, subject) | {"notes": []}
    if is_whole(subject):
        return write_whole(args, subject, targets, soc)
    fallbacks: dict[str, str] = {}
    request = export_request(args, subject, soc, fallbacks)
    trial = request.trial
    notes = notes_on_memory(soc, trial.weight_bytes(soc.element_bytes)) if soc and trial else []
    if args.format == FORMAT:
        return write_cpp(args, request, subject) | {"notes": notes}
    return write_request(args, request, targets) | {"fallbacks": fallbacks, "notes": notes}


def notes_on_memory(soc: Soc, weight_bytes: Mapping[str, int]) -> list[str]:
    """Return that weights exceed the memory of a processor, where they do."""
    from nnstretch.stretch.search.constraints import MemoryLimit

    violation = MemoryLimit(soc).violation(weight_bytes)
    return [] if violation is None else [str(violation)]


def targets_of(args: argparse.Namespace) -> ExportTargets:
    """Return what --out, --also and --single name. Raises BadInput for one that is of no use."""
    if args.format == FORMAT:
        return ExportTargets(also=load_variants(args.also))
    sources = (args.model, args.weights, *args.also, args.soc)
    out, single = check_writable(args.out, *sources), check_writable(args.single, *sources)
    return ExportTargets(out, load_variants(args.also), single)


def write_request(
    args: argparse.Namespace, request: ExportRequest, targets: ExportTargets
) -> dict[str, Any]:
    """Write the bundle, the single file, or both; return them as JSON data.

    Of both none is replaced unless both are there.
    """
    from nnstretch.export.bundle import export_bundle
    from nnstretch.export.single_file import export_single, format_of
    from nnstretch.files.atomic import atomic_write

    written, single_file = None, None
    with progress("exporting") as tick, ExitStack() as stack:
        request = replace(request, progress=tick)
        if (single := targets.single) is not None:
            aside = stack.enter_context(atomic_write(single))
            single_file = export_single(replace(request, format=format_of(single)), aside)
        if targets.out is not None:
            written = export_bundle(request, targets.out, targets.also)
    predicted_us = request.trial.latency_us if request.trial else None
    images = len(request.calibration.indices) if request.int8 else None  # type: ignore[union-attr]
    return result_of(args, written, single_file, predicted_us, images)


def write_whole(
    args: argparse.Namespace, subject: LoadedModel, targets: ExportTargets, soc: Soc | None
) -> dict[str, Any]:
    """Write a network with several inputs or outputs in one piece; return it as JSON data."""
    from nnstretch.bundle.bundle import write_bundle
    from nnstretch.export.bundle import ExportedBundle
    from nnstretch.export.single_file import SingleFile
    from nnstretch.files.atomic import atomic_write

    fallbacks: dict[str, str] = {}
    bundle = export_whole_network(args, subject, soc, fallbacks)
    (subgraph,) = bundle.manifest.subgraphs
    written, single_file = None, None
    with ExitStack() as stack:
        if targets.single is not None:
            aside = stack.enter_context(atomic_write(targets.single))
            aside.write_bytes(bundle.files[subgraph.file])
            single_file = SingleFile(subgraph.size_bytes, bundle.manifest.max_abs_error)
        if (out := targets.out) is not None:
            merged = merge_bundles(replace(bundle, name=str(out)), targets.also)
            write_bundle(out, merged.manifest, merged.files)
            written = ExportedBundle(merged.manifest)
    predicted_us = subgraph.predicted_us.get(subgraph.processor)
    params, on = subject.graph.params, subgraph.processor
    notes = notes_on_memory(soc, {on: params * soc.element_bytes}) if soc else []
    result = result_of(args, written, single_file, predicted_us)
    return result | {"fallbacks": fallbacks, "notes": notes}


def export_request(
    args: argparse.Namespace,
    subject: LoadedModel,
    soc: Soc | None,
    fallbacks: dict[str, str],
) -> ExportRequest:
    """Return the network with its weights, and what it is predicted to take.

    Kernels that --fallback prices are added to `fallbacks`, with the kind that stands for each.
    Raises BadInput when --processor is given with a plan, or the weights score other classes than
    the recipe of --calibration has; UnsupportedOp for a kernel without price.
    """
    from nnstretch.export.subgraph_specs import ExportRequest, check_int8_input
    from nnstretch.stretch import single_processor_plan
    from nnstretch.stretch.lowering.lower import lower
    from nnstretch.stretch.weights.weights_file import read_image_task

    if subject.plan is not None and args.processor is not None:
        raise BadInput(
            f"--processor is {args.processor}, command line, {args.model} is a plan and places its"
            " own branches"
        )
    plan = subject.plan or single_processor_plan(
        subject.graph,
        subject.graph.name,
        args.processor or (soc.processors[0].name if soc else "cpu"),
    )
    lowered = lower(subject.analysis, plan)
    calibration, held_out = None, None
    task = read_image_task(args.weights) if args.weights else None
    if args.int8:
        check_int8_input(subject.graph.inputs[0].spec, subject.graph.name)
        from nnstretch.train.data.calibration import open_calibration, open_held_out
        from nnstretch.train.preflight import check_same_classes

        calibration = open_calibration(
            *(args.calibration, args.calibration_images or CALIBRATION_IMAGES, plan.input_shape),
            task=task,
        )
        held_out = open_held_out(args.calibration, HELD_OUT_IMAGES, plan.input_shape[2])
        if task is not None and held_out is not None:
            check_same_classes(args.weights, task.classes, held_out.dataset)
    module = subject.build_stretched(lowered, args.weights)
    trial = predicted_trial(args, subject, lowered, soc, fallbacks) if soc else None
    file_format = "onnx" if args.format == FORMAT else args.format
    return ExportRequest(
        *(module, plan, file_format, args.int8, calibration, trial, soc),
        least_snr_db=args.min_snr,
        held_out=held_out,
        max_drop=args.max_drop,
        image_task=task,
    )


def predicted_trial(
    args: argparse.Namespace,
    subject: LoadedModel,
    lowered: LoweredNetwork,
    soc: Soc,
    fallbacks: dict[str, str],
) -> Trial:
    """Return what the plan is predicted to take on the chip.

    Raises UnsupportedOp, which names --fallback, for a kernel that was never measured.
    """
    from nnstretch.stretch.cost.cost_model import CostModel

    cost_model = CostModel(soc, args.fallback, fallbacks=fallbacks)
    with naming_fallback(args.fallback):
        return subject.estimate(lowered, soc, cost_model)
