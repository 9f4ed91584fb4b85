"""A partition leaves PyTorch: an ONNX file for every stage, verified, linked, in one bundle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from nnstretch.bundle.bundle import write_bundle
from nnstretch.bundle.manifest import Manifest
from nnstretch.capture.rebuild_module import build
from nnstretch.export.onnx.convert import check_close
from nnstretch.export.onnx.sections import SectionFile, run_in_sequence, section_file
from nnstretch.graph import Graph, TensorSpec
from nnstretch.partition.build_manifest import (
    AFTER,
    BEFORE,
    ModuleFile,
    add_python_stages,
    build_manifest,
    chain_module_graph,
    with_parameter_groups,
)
from nnstretch.partition.module_graph import ModuleGraph, ModuleSettings
from nnstretch.partition.partition import Partition, StageCost
from nnstretch.pipeline import DEFAULT_CAPACITY, TensorDecl
from nnstretch.soc import Soc
from nnstretch.soc_instances import processor_kinds

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class StageOptions:
    """What a partition does not say: how stages run, and what stands around them."""

    threads: int = 1
    capacity: int = DEFAULT_CAPACITY
    before: str = ""
    """`module:function` that makes the network's inputs of an item; empty for none."""
    after: str = ""
    """`module:function` that makes a result of the network's outputs."""
    seed: int = 0
    """Of the random input that files are compared on."""
    cores: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By stage, CPU cores that it is bound to; absent for any."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """By Python stage, `before` or `after`, threads that call it at once."""


def export_partition(
    partition: Partition,
    weights: Mapping[str, torch.Tensor],
    path: Path | str,
    *,
    soc: Soc | str | None = None,
    module: nn.Module | None = None,
    stage_options: StageOptions | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Write a `.nns` whose pipeline is this partition.

    Each file is compared with its module, all in a row with the network.

    `module` is the network itself where it is at hand, else one is built of the graph. Raises
    Mismatch, UnsupportedOp.
    """
    stage_options, graph = stage_options or StageOptions(), partition.graph
    arrays_in = example_inputs(graph, stage_options.seed)
    files = files_of(partition, weights, arrays_in, progress or (lambda *_: None))
    arrays = {name: value.numpy() for name, value in arrays_in.items()}
    computed = run_in_sequence(files, arrays)
    expected = outputs_of(
        module if module is not None else build(graph, weights), tuple(arrays_in.values())
    )
    pairs = zip(graph.outputs, expected, strict=True)
    error = max(
        check_close(value.numpy(), computed[name], f"pipeline of {graph.name}, {name},")
        for name, value in pairs
    )
    links = module_graph_of(partition, files, stage_options)
    modules = {
        f"s{number}": module_file(file, stage)
        for number, (file, stage) in enumerate(zip(files, partition.stages, strict=True))
    }
    chip = soc if isinstance(soc, Soc) else None
    name = chip.name if chip is not None else str(soc) if soc is not None else None
    manifest, contents = build_manifest(links, modules, graph.name, name, error)
    names = [name for sub in manifest.subgraphs for name in (sub.processor, *sub.predicted_us)]
    manifest = replace(manifest, processor_kinds=processor_kinds(chip, names))
    write_bundle(Path(path), manifest, contents)
    return manifest


def module_graph_of(
    partition: Partition, files: list[SectionFile], stage_options: StageOptions
) -> ModuleGraph:
    """Return the network's own links with processors, parameter groups and Python stages."""
    settings = {
        f"s{number}": ModuleSettings(
            tuple(share.processor for share in stage.shares),
            stage_options.threads,
            capacity=stage_options.capacity,
        )
        for number, stage in enumerate(partition.stages)
    }
    settings |= {
        name: ModuleSettings(
            capacity=stage_options.capacity, replicas=stage_options.replicas.get(name, 1)
        )
        for name in (BEFORE, AFTER)
    }
    settings |= {
        name: replace(settings[name], cores=cores) for name, cores in stage_options.cores.items()
    }
    links = replace(
        chain_module_graph(partition.subgraphs, partition.graph.outputs), settings=settings
    )
    params = {
        f"s{number}": [TensorDecl(name, spec) for name, spec in file.parameters]
        for number, file in enumerate(files)
    }
    return add_python_stages(
        with_parameter_groups(links, params), stage_options.before, stage_options.after
    )


def files_of(
    partition: Partition,
    weights: Mapping[str, torch.Tensor],
    examples: Mapping[str, torch.Tensor],
    tell: Progress,
) -> list[SectionFile]:
    """Export every stage's file, in order; each module is given what those before it wrote."""
    values, files = dict(examples), list[SectionFile]()
    for number, (subgraph, stage) in enumerate(
        zip(partition.subgraphs, partition.stages, strict=True)
    ):
        tell(number, len(partition.subgraphs), f"stage {number}")
        network = build(subgraph, weights).eval()
        inputs = {value.name: values[value.name] for value in subgraph.inputs}
        files.append(section_file(f"s{number}", network, inputs, subgraph.outputs, notes_of(stage)))
        values |= zip(subgraph.outputs, outputs_of(network, tuple(inputs.values())), strict=True)
    return files


def notes_of(stage: StageCost) -> dict[str, str]:
    """Return the metadata of a stage's file."""
    processors = ", ".join(share.processor for share in stage.shares)
    return {
        "processor": processors,
        "stage": f"{stage.start} -> {stage.end}",
        "predicted_ms": f"{stage.latency_us / 1000:.3f}",
    }


def module_file(file: SectionFile, stage: StageCost) -> ModuleFile:
    """Describe a stage's file.

    Copies count as compute unless every replica copies beside its compute.
    """
    beside = any(share.beside for share in stage.shares)
    return ModuleFile(
        data=file.data,
        inputs=file.inputs,
        outputs=file.outputs,
        predicted_us={share.processor: share.latency_us for share in stage.shares},
        error_us={share.processor: share.error_us for share in stage.shares},
        max_abs_error=file.max_abs_error,
        copy_in_us={
            share.processor: share.transfer_in_us if share.beside else 0.0
            for share in stage.shares
            if beside
        },
        copy_out_us={
            share.processor: share.transfer_out_us if share.beside else 0.0
            for share in stage.shares
            if beside
        },
    )


def outputs_of(network: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Return every tensor that a network returns, in the order in which capture lists them."""
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            leaves = torch.utils._pytree.tree_leaves(network(*inputs))
    finally:
        network.train(training)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def example_inputs(graph: Graph, seed: int) -> dict[str, torch.Tensor]:
    """Return standard normal numbers, or small counts where an input holds integers."""
    generator = torch.Generator().manual_seed(seed)
    return {value.name: random_input(value.spec, generator) for value in graph.inputs}


def random_input(spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    """Draw a random input of a spec."""
    kind = getattr(torch, spec.dtype)
    if kind.is_floating_point:
        return torch.randn(spec.shape, generator=generator).to(kind)
    return torch.randint(0, 2, spec.shape, generator=generator).to(kind)
