"""A network whole or in pieces as a bundle: an ONNX file for each, checked against its module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from nnstretch.bundle.archive import digest
from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Manifest, Port, Subgraph
from nnstretch.capture.checks.random_operators import check_repeatable
from nnstretch.capture.example_inputs import draw_inputs
from nnstretch.capture.rebuild_module import build
from nnstretch.export.bundle import check_readable
from nnstretch.export.onnx.convert import OnnxRunner
from nnstretch.export.onnx.sections import (
    SectionFile,
    check_pieces,
    compare_with_network,
    outputs_of,
    section_file,
)
from nnstretch.graph import Graph

Progress = Callable[[int, int], None]


def export_pieces(
    graph: Graph,
    weights: Mapping[str, torch.Tensor],
    pieces: Sequence[Graph],
    progress: Progress,
) -> Bundle:
    """Return pieces of a graph as the sub-graphs piece0, piece1, ... of a bundle.

    Each reads what those before it wrote. Raises Mismatch, UnsupportedOp.
    """
    check_repeatable(graph, graph.name)
    check_pieces(graph, pieces)
    values = draw_inputs(graph, 0)
    ports: dict[str, Port] = {}
    files: dict[str, bytes] = {}
    subgraphs: list[Subgraph] = []
    for number, piece in enumerate(pieces):
        progress(number, len(pieces))
        network = build(piece, weights).eval()
        inputs = {value.name: values[value.name] for value in piece.inputs}
        section = section_file(f"piece{number}", network, inputs, piece.outputs, {})
        subgraph = piece_subgraph(f"piece{number}", section)
        subgraphs.append(subgraph)
        files[subgraph.file] = section.data
        for port in (*section.inputs, *section.outputs):
            ports[port.name] = port
        values |= zip(piece.outputs, outputs_of(network, tuple(inputs.values())), strict=True)
    manifest = Manifest(
        graph.name,
        None,
        tuple(ports[value.name] for value in graph.inputs),
        tuple(ports[name] for name in graph.outputs),
        tuple(subgraphs),
        max(subgraph.max_abs_error for subgraph in subgraphs),
    )
    return Bundle(manifest, files, graph.name)


def export_whole(
    graph: Graph, weights: Mapping[str, torch.Tensor], module: nn.Module, progress: Progress
) -> Bundle:
    """Return a network with any number of inputs and outputs as one sub-graph, checked against it.

    Raises Mismatch, UnsupportedOp.
    """
    bundle = export_pieces(graph, weights, [graph], progress)
    check_readable(bundle.manifest.subgraphs, bundle.files, graph.name)
    examples = draw_inputs(graph, 0)
    arrays = {name: value.numpy() for name, value in examples.items()}
    (data,) = bundle.files.values()
    error = compare_with_network(graph, OnnxRunner(data).run_named(arrays), module, examples)
    return replace(bundle, manifest=replace(bundle.manifest, max_abs_error=error))


def piece_subgraph(name: str, section: SectionFile) -> Subgraph:
    """Return a piece as an entry of a manifest; it may run on any processor."""
    return Subgraph(
        name,
        "cpu",
        f"subgraphs/{name}.onnx",
        digest(section.data),
        len(section.data),
        section.inputs,
        section.outputs,
        max_abs_error=section.max_abs_error,
    )
