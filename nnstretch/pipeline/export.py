"""A partition leaves PyTorch: an ONNX file for every stage, verified, linked, in one bundle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from nnstretch.bundle import write_bundle
from nnstretch.capture.build import build
from nnstretch.export.pieces import PieceFile, in_a_row, piece_file
from nnstretch.export.subgraphs import difference
from nnstretch.graph import Graph, TensorSpec
from nnstretch.manifest import Manifest
from nnstretch.pipeline.assemble import AFTER, BEFORE, ModuleFile, assembled, links_of, with_functions, with_params
from nnstretch.pipeline.links import Links, Settings
from nnstretch.pipeline.partition import Partition, Priced
from nnstretch.stages import DEFAULT_CAPACITY, Item

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Outfit:
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
    soc: str | None = None,
    module: nn.Module | None = None,
    outfit: Outfit | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Write a `.nns` whose pipeline is this partition. Each file is compared with its module, all in a row with the network.

    `module` is the network itself where it is at hand, else one is built of the graph. Raises Mismatch, UnsupportedOp.
    """
    outfit, graph = outfit or Outfit(), partition.graph
    given = example(graph, outfit.seed)
    files = files_of(partition, weights, given, progress or (lambda *_: None))
    arrays = {name: value.numpy() for name, value in given.items()}
    found = in_a_row(files, arrays)
    expected = outputs_of(module if module is not None else build(graph, weights), tuple(given.values()))
    pairs = zip(graph.outputs, expected, strict=True)
    error = max(difference(value.numpy(), found[name], f"pipeline of {graph.name}, {name},") for name, value in pairs)
    links = linked(partition, files, outfit)
    made = {f"s{number}": module_file(file, stage) for number, (file, stage) in enumerate(zip(files, partition.stages, strict=True))}
    manifest, contents = assembled(links, made, graph.name, soc, error)
    write_bundle(Path(path), manifest, contents)
    return manifest


def linked(partition: Partition, files: list[PieceFile], outfit: Outfit) -> Links:
    """The network's own links with processors, parameter groups and Python stages."""
    settings = {
        f"s{number}": Settings(tuple(share.processor for share in stage.shares), outfit.threads, capacity=outfit.capacity)
        for number, stage in enumerate(partition.stages)
    }
    settings |= {name: Settings(capacity=outfit.capacity, replicas=outfit.replicas.get(name, 1)) for name in (BEFORE, AFTER)}
    settings |= {name: replace(settings[name], cores=cores) for name, cores in outfit.cores.items()}
    links = replace(links_of(partition.pieces, partition.graph.outputs), settings=settings)
    params = {f"s{number}": [Item(name, spec) for name, spec in file.parameters] for number, file in enumerate(files)}
    return with_functions(with_params(links, params), outfit.before, outfit.after)


def files_of(partition: Partition, weights: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor], tell: Progress) -> list[PieceFile]:
    """Every stage's file, in order; each module is given what those before it wrote."""
    values, files = dict(given), list[PieceFile]()
    for number, (piece, stage) in enumerate(zip(partition.pieces, partition.stages, strict=True)):
        tell(number, len(partition.pieces), f"stage {number}")
        network = build(piece, weights).eval()
        inputs = {value.name: values[value.name] for value in piece.inputs}
        files.append(piece_file(f"s{number}", network, inputs, piece.outputs, notes_of(stage)))
        values |= zip(piece.outputs, outputs_of(network, tuple(inputs.values())), strict=True)
    return files


def notes_of(stage: Priced) -> dict[str, str]:
    processors = ", ".join(share.processor for share in stage.shares)
    return {"processor": processors, "stage": f"{stage.start} -> {stage.end}", "predicted_ms": f"{stage.latency_us / 1000:.3f}"}


def module_file(file: PieceFile, stage: Priced) -> ModuleFile:
    """Where one replica copies beside its compute and another does not, all copies of the other are part of its compute."""
    beside = any(share.beside for share in stage.shares)
    return ModuleFile(
        data=file.data,
        inputs=file.inputs,
        outputs=file.outputs,
        predicted_us={share.processor: share.latency_us for share in stage.shares},
        error_us={share.processor: share.error_us for share in stage.shares},
        max_abs_error=file.max_abs_error,
        copy_in_us={share.processor: share.transfer_in_us if share.beside else 0.0 for share in stage.shares if beside},
        copy_out_us={share.processor: share.transfer_out_us if share.beside else 0.0 for share in stage.shares if beside},
    )


def outputs_of(network: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Every tensor that a network returns, in the order in which capture lists them."""
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            leaves = torch.utils._pytree.tree_leaves(network(*inputs))
    finally:
        network.train(training)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def example(graph: Graph, seed: int) -> dict[str, torch.Tensor]:
    """Standard normal numbers, or small counts where an input holds integers."""
    generator = torch.Generator().manual_seed(seed)
    return {value.name: drawn(value.spec, generator) for value in graph.inputs}


def drawn(spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    kind = getattr(torch, spec.dtype)
    if kind.is_floating_point:
        return torch.randn(spec.shape, generator=generator).to(kind)
    return torch.randint(0, 2, spec.shape, generator=generator).to(kind)
