"""Networks with several inputs or outputs: no plan stretches them, one sub-graph computes all."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.cli.arguments import naming_fallback
from nnstretch.cli.loaded_model import LoadedModel
from nnstretch.cli.progress import progress
from nnstretch.errors import BadInput

if TYPE_CHECKING:
    from torch import nn

    from nnstretch.bundle.bundle import Bundle
    from nnstretch.bundle.manifest import Manifest, Subgraph
    from nnstretch.capture.torch_export import CapturedNetwork
    from nnstretch.graph import Graph
    from nnstretch.soc import Soc
    from nnstretch.stretch.cost.cost_model import CostModel


def is_whole(subject: LoadedModel) -> bool:
    """Return whether a network can only be exported in one piece: no plan can be made of it."""
    several = len(subject.graph.inputs) != 1 or len(subject.graph.outputs) != 1
    return subject.plan is None and (several or not subject.analysis.cuts)


def export_whole_network(
    args: argparse.Namespace, subject: LoadedModel, soc: Soc | None, fallbacks: dict[str, str]
) -> Bundle:
    """Return the network as one ONNX sub-graph in a bundle.

    Kernels that --fallback prices are added to `fallbacks`, with the kind that stands for each.
    Raises BadInput for other formats, UnsupportedOp for a kernel without price.
    """
    from nnstretch.partition.pieces import export_whole
    from nnstretch.stretch.cost.cost_model import CostModel

    check_format(args, subject.graph)
    processor = args.processor or (soc.processors[0].name if soc else "cpu")
    if soc is not None:
        soc.processor(processor)
    module, captured = subject.module, subject.captured
    if args.weights is not None:
        module, captured = with_weights(args, subject)
    with progress("exporting") as tick:
        bundle = export_whole(
            captured.graph, captured.weights, module, lambda done, count: tick(done, count, "")
        )
    (subgraph,) = bundle.manifest.subgraphs
    cost_model = None if soc is None else CostModel(soc, args.fallback, fallbacks=fallbacks)
    with naming_fallback(args.fallback):
        placed = placed_on(subgraph, captured.graph, cost_model, processor)
    return replace(bundle, manifest=with_chip(bundle, placed, soc))


def check_format(args: argparse.Namespace, graph: Graph) -> None:
    """Refuse what such a network cannot be exported as. Raises BadInput."""
    single_litert = args.single is not None and Path(args.single).suffix != ".onnx"
    if args.format != "onnx" or single_litert:
        what = f"--single {args.single}" if single_litert else f"--format {args.format}"
        several = len(graph.inputs) == 1 < len(graph.outputs)
        hint = " (choose one output with --outputs)" if several else ""
        raise BadInput(
            f"{what} of {args.model}, command line, {why_whole(graph)}; only ONNX and C++ hold a"
            f" network in one piece{hint}"
        )


def why_whole(graph: Graph) -> str:
    """Return why a network can only be exported in one piece."""
    inputs, outputs = len(graph.inputs), len(graph.outputs)
    if not inputs == outputs == 1:
        return f"it has {inputs} inputs and {outputs} outputs"
    if graph.outputs[0] in graph.input_names:
        return "its output is its input, so no sub-graph computes it"
    return "it has no cut, its output has no dimensions or does not depend on its input"


def with_weights(
    args: argparse.Namespace, subject: LoadedModel
) -> tuple[nn.Module, CapturedNetwork]:
    """Return the network, captured again, with the weights of --weights."""
    from nnstretch.capture.example_inputs import example_inputs
    from nnstretch.capture.model_spec import spec_with
    from nnstretch.capture.torch_export import trace
    from nnstretch.stretch.weights.weights_file import load_weights

    load_weights(subject.module, args.weights)
    model = spec_with(args.model, args.input, args.outputs)
    examples = example_inputs(model, subject.module, args.input)
    return subject.module, trace(subject.module, examples, model)


def placed_on(
    subgraph: Subgraph, graph: Graph, cost_model: CostModel | None, processor: str
) -> Subgraph:
    """Return the sub-graph on its processor, with predicted times of all that can compute it."""
    from nnstretch.stretch.cost.cost_model import uncovered_kernels

    if cost_model is None:
        return replace(subgraph, processor=processor)
    soc = cost_model.soc
    predicted_us: dict[str, float] = {}
    error_us: dict[str, float] = {}
    for name in soc.processor_names:
        if name == processor or not uncovered_kernels(graph, soc, (name,), cost_model):
            cost = cost_model.estimate_alone(graph, name)
            predicted_us[name] = cost.latency_us
            error_us[name] = sum(branch.error_us for branch in cost.branches)
    return replace(subgraph, processor=processor, predicted_us=predicted_us, error_us=error_us)


def with_chip(bundle: Bundle, subgraph: Subgraph, soc: Soc | None) -> Manifest:
    """Return the manifest with its one sub-graph, and the chip that it was predicted for."""
    from nnstretch.soc_instances import processor_kinds

    names = [subgraph.processor, *subgraph.predicted_us]
    return replace(
        bundle.manifest,
        soc=soc.name if soc else None,
        subgraphs=(subgraph,),
        processor_kinds=processor_kinds(soc, names),
    )
