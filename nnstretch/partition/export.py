"""Export a partition: an ONNX file for every stage, verified, in one bundle with its pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import torch
from torch import nn

from nnstretch.bundle.bundle import read_bundle, write_bundle
from nnstretch.bundle.manifest import Manifest
from nnstretch.capture.checks.random_operators import check_repeatable
from nnstretch.capture.example_inputs import draw_inputs
from nnstretch.capture.module_layers import attribute_path
from nnstretch.capture.rebuild_module import build
from nnstretch.errors import UnknownName
from nnstretch.export.bundle import export_bundle
from nnstretch.export.onnx.network_file import NetworkFile
from nnstretch.export.onnx.network_file import network_file as export_network
from nnstretch.export.onnx.sections import (
    SectionFile,
    check_pieces,
    compare_with_network,
    outputs_of,
    run_in_sequence,
    section_file,
)
from nnstretch.export.subgraph_specs import ExportRequest
from nnstretch.files.checked import check_settings, checked
from nnstretch.files.limits import shorten
from nnstretch.graph import Graph
from nnstretch.partition.branched_stages import SegmentRange, pipeline_of, with_contention
from nnstretch.partition.build_manifest import ModuleFile, build_manifest
from nnstretch.partition.module_graph import ModuleGraph, ModuleSettings
from nnstretch.partition.partition import Partition, StageCost
from nnstretch.partition.search.compute_layers import compute_layers
from nnstretch.partition.split_graph import crossing_values
from nnstretch.partition.stage_modules import (
    AFTER,
    BEFORE,
    add_python_stages,
    chain_module_graph,
    with_parameter_groups,
)
from nnstretch.pipeline import DEFAULT_CAPACITY, TensorDecl
from nnstretch.soc import Soc
from nnstretch.soc_instances import processor_kinds
from nnstretch.trial import Trial

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class StageOptions:
    """How stages run, and the Python stages around the network."""

    threads: int = 1
    capacity: int = DEFAULT_CAPACITY
    before: str = ""
    """`module:function` that makes the network's inputs of an item; empty for none."""
    after: str = ""
    """`module:function` that makes a result of the network's outputs."""
    seed: int = 0
    """Of the random input that files are compared on."""
    cores: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """CPU cores by stage; a stage that is absent runs on any."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """Threads that call a Python stage at once, by `before` or `after`."""

    def __post_init__(self) -> None:
        check_settings(self)


@checked
def export_partition(
    partition: Partition,
    weights: Mapping[str, torch.Tensor],
    path: Path | str,
    *,
    soc: Soc | str | None = None,
    module: nn.Module | None = None,
    stage_options: StageOptions | None = None,
    progress: Progress | None = None,
    network_file: NetworkFile | None = None,
) -> Manifest:
    """Write a partition as a bundle with a pipeline, and return the manifest.

    Each file is compared with its own module, all in a row with the network: `module` where it is
    at hand, else one built of the graph. Files are cut from `network_file` (`export_to_cut`) where
    there is one. Raises Mismatch, UnsupportedOp.
    """
    options = stage_options or StageOptions()
    graph = partition.graph
    check_repeatable(graph, graph.name)
    check_pieces(graph, partition.subgraphs)
    examples = draw_inputs(graph, options.seed)
    tell = progress or (lambda *_: None)
    files = export_stages(partition, weights, examples, tell, network_file)
    network = module if module is not None else build(graph, weights)
    arrays = {name: value.numpy() for name, value in examples.items()}
    error = compare_with_network(graph, run_in_sequence(files, arrays), network, examples)
    module_graph = module_graph_of(partition, files, options)
    module_files = {}
    for number, (file, stage) in enumerate(zip(files, partition.stages, strict=True)):
        module_files[f"s{number}"] = module_file(file, stage)
    chip = soc if isinstance(soc, Soc) else None
    chip_name = soc.name if isinstance(soc, Soc) else soc
    manifest, contents = build_manifest(module_graph, module_files, graph.name, chip_name, error)
    names = chain.from_iterable(sub.possible_processors for sub in manifest.subgraphs)
    manifest = replace(manifest, processor_kinds=processor_kinds(chip, names))
    write_bundle(Path(path), manifest, contents)
    return manifest


def export_branched(
    request: ExportRequest,
    trial: Trial,
    soc: Soc,
    ranges: Sequence[SegmentRange],
    path: Path,
    options: StageOptions,
    progress: Progress | None = None,
) -> float:
    """Write a plan's bundle with branched stages; return the largest difference from the network.

    Raises Mismatch, UnsupportedOp.
    """
    export_bundle(replace(request, progress=progress), path)
    bundle = read_bundle(path)
    manifest = with_contention(bundle.manifest, trial, soc, ranges)
    pipeline = pipeline_of(manifest, ranges, options.threads, options.capacity, options.cores)
    write_bundle(path, replace(manifest, pipeline=pipeline), bundle.files)
    return manifest.max_abs_error


def module_graph_of(
    partition: Partition, files: Sequence[SectionFile], options: StageOptions
) -> ModuleGraph:
    """Return a partition as connected modules with processors, parameter groups, Python stages.

    Raises UnknownName for cores of a stage that is not there.
    """
    capacity = options.capacity
    settings = {}
    params = {}
    for number, (stage, file) in enumerate(zip(partition.stages, files, strict=True)):
        processors = tuple(share.processor for share in stage.shares)
        settings[f"s{number}"] = ModuleSettings(processors, options.threads, capacity=capacity)
        params[f"s{number}"] = replaceable_weights(file, partition.subgraphs, files)
    if unknown := [name for name in options.cores if name not in (*settings, BEFORE, AFTER)]:
        known, absent = ", ".join((*settings, BEFORE, AFTER)), shorten(unknown[0])
        raise UnknownName(f"unknown stage {absent} of cores, partition, it has {known}")
    for name in (BEFORE, AFTER):
        replicas = options.replicas.get(name, 1)
        settings[name] = ModuleSettings(capacity=capacity, replicas=replicas)
    for name, cores in options.cores.items():
        settings[name] = replace(settings[name], cores=cores)
    graph = chain_module_graph(partition.subgraphs, partition.graph.outputs)
    graph = with_parameter_groups(replace(graph, settings=settings), params)
    return add_python_stages(graph, options.before, options.after)


def replaceable_weights(
    file: SectionFile, subgraphs: Sequence[Graph], files: Sequence[SectionFile]
) -> list[TensorDecl]:
    """Return the weights of a file that every stage which reads them holds as they are."""
    fixed: set[str] = set()
    for each, subgraph in zip(files, subgraphs, strict=True):
        read = {attribute_path(weight.name) for weight in subgraph.weights}
        fixed |= read - {name for name, _ in each.parameters}
    return [TensorDecl(name, spec) for name, spec in file.parameters if name not in fixed]


def export_stages(
    partition: Partition,
    weights: Mapping[str, torch.Tensor],
    examples: Mapping[str, torch.Tensor],
    progress: Progress,
    network_file: NetworkFile | None = None,
) -> list[SectionFile]:
    """Export every stage's file in order; each reads what those before it wrote."""
    values = dict(examples)
    files: list[SectionFile] = []
    for stage, subgraph in zip(partition.stages, partition.subgraphs, strict=True):
        number = len(files)
        progress(number, len(partition.subgraphs), f"stage {number}")
        network = build(subgraph, weights).eval()
        inputs = {value.name: values[value.name] for value in subgraph.inputs}
        notes = stage_metadata(stage)
        name, outputs = f"s{number}", subgraph.outputs
        files.append(section_file(name, network, inputs, outputs, notes, network_file))
        values |= zip(outputs, outputs_of(network, tuple(inputs.values())), strict=True)
    return files


def export_to_cut(
    graph: Graph, weights: Mapping[str, torch.Tensor], unit_of: Sequence[int] | None = None
) -> NetworkFile:
    """Export a network once, so that files of many partitions are cut from it.

    `unit_of` are the units that partitions keep whole, else compute layers. Raises UnsupportedOp.
    """
    crossing = crossing_values(graph, compute_layers(graph) if unit_of is None else unit_of)
    outputs = tuple(dict.fromkeys((*crossing, *graph.outputs)))
    network = build(replace(graph, outputs=outputs), weights).eval()
    return export_network(graph.name, network, tuple(draw_inputs(graph, 0).items()), outputs)


def stage_metadata(stage: StageCost) -> dict[str, str]:
    """Return the metadata of a stage's file."""
    return {
        "processor": ", ".join(share.processor for share in stage.shares),
        "stage": f"{stage.start} -> {stage.end}",
        "predicted_ms": f"{stage.latency_us / 1000:.3f}",
    }


def module_file(file: SectionFile, stage: StageCost) -> ModuleFile:
    """Return a stage's file with its predicted times.

    Copies count as compute unless a replica's processor copies beside its compute.
    """
    copy_in_us = {}
    copy_out_us = {}
    if any(share.overlaps_copies for share in stage.shares):
        for share in stage.shares:
            overlaps = share.overlaps_copies
            copy_in_us[share.processor] = share.transfer_in_us if overlaps else 0.0
            copy_out_us[share.processor] = share.transfer_out_us if overlaps else 0.0
    return ModuleFile(
        data=file.data,
        inputs=file.inputs,
        outputs=file.outputs,
        predicted_us={share.processor: share.latency_us for share in stage.shares},
        error_us={share.processor: share.error_us for share in stage.shares},
        max_abs_error=file.max_abs_error,
        copy_in_us=copy_in_us,
        copy_out_us=copy_out_us,
    )
