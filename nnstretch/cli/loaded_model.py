"""The network, plan and chip that the command line names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch._interpreter import PausedCollector
from nnstretch.errors import BadInput, BadPlan, Mismatch, UnknownName
from nnstretch.files.plan_yaml import read_predicted_plan
from nnstretch.graph import InputShape

if TYPE_CHECKING:
    import torch
    from torch import nn

    from nnstretch.capture.torch_export import CapturedNetwork
    from nnstretch.files.plan_prediction import PlanPrediction
    from nnstretch.graph import Graph
    from nnstretch.plan import Plan
    from nnstretch.soc import Soc
    from nnstretch.stretch import LoweredNetwork, NetworkAnalysis
    from nnstretch.stretch.cost.cost_model import CostModel
    from nnstretch.stretch.weights.branched_module import StretchedNetwork
    from nnstretch.trial import Trial

LARGEST_DIFFERENCE = 0.02
"""Of the largest magnitude: blocks of lower precision are captured as float32."""


@dataclass(frozen=True)
class LoadedModel:
    """A network named on the command line; with its plan, if a plan was named."""

    spec: str
    module: nn.Module
    """The original, also where a plan was named."""
    captured: CapturedNetwork
    plan: Plan | None
    predicted: PlanPrediction | None = None
    """What the plan's file remembers of its trial."""

    @property
    def graph(self) -> Graph:
        """Return the captured graph of the original."""
        return self.captured.graph

    @property
    def is_stale(self) -> bool:
        """Return whether plan or network have changed since the plan's file was written."""
        from nnstretch.files.plan_prediction import network_sha256

        if self.plan is None or self.predicted is None:
            return False
        return self.predicted.network_sha256 != network_sha256(self.plan, self.graph)

    @property
    def analysis(self) -> NetworkAnalysis:
        """Return the analysis of the network's structure."""
        from nnstretch.stretch import NetworkAnalysis

        return NetworkAnalysis(self.graph)

    def estimate(
        self,
        lowered: LoweredNetwork,
        soc: Soc,
        cost_model: CostModel | None = None,
    ) -> Trial:
        """Predict a lowered plan, also on the processors it may move to.

        What its file remembers is not computed again, unless network, plan or chip have changed.
        Raises UnsupportedOp for a kernel that was never measured, if the cost model refuses it.
        """
        from nnstretch.predict.load_soc import soc_sha256
        from nnstretch.stretch.cost.cost_model import estimate_plan
        from nnstretch.stretch.cost.failover_costs import with_alternatives

        if self.predicted is not None and soc.folder:
            trial = self.predicted.trial(lowered.plan, self.graph, soc_sha256(soc.folder))
            if trial is not None:
                return trial
        return with_alternatives(estimate_plan(lowered, soc, cost_model), lowered, soc)

    def load_own_soc(self) -> Soc | None:
        """Load the chip that the plan is for; None where it names none.

        Raises UnknownName where no such chip is here, BadInput where it is another of that name
        than the plan's file was predicted on.
        """
        from nnstretch.predict.load_soc import find_soc, soc_sha256

        if self.plan is None or self.plan.soc is None:
            return None
        name = self.plan.soc
        try:
            folder = find_soc(name)
        except UnknownName:
            raise UnknownName(
                f"unknown SoC {name!r}, plan {self.spec}, it names its chip, but not where that is,"
                " give --soc with the chip's folder"
            ) from None
        if self.predicted is not None and self.predicted.soc_sha256 != soc_sha256(folder):
            raise BadInput(
                f"SoC {name}, plan {self.spec}, its predicted times are of a chip of that name with"
                f" other files, give --soc {name} for this one, or --soc with the folder of the"
                " other"
            )
        return load_soc_of(name)

    def build_stretched(self, lowered: LoweredNetwork, weights: str | None) -> StretchedNetwork:
        """Build a lowered plan of this network with a file's weights, or those it starts with.

        A named plan's weights are its own; others are the original's, which it inherits.

        Raises Mismatch where the network, rebuilt from its graph, computes something else than its
        module, UnsupportedOp where it draws random numbers.
        """
        from nnstretch.capture.checks.random_operators import check_repeatable
        from nnstretch.stretch.weights.branched_module import build_module, stretch
        from nnstretch.stretch.weights.weights_file import load_weights

        check_repeatable(self.graph, self.spec)
        if self.plan is None and weights is not None:
            load_weights(self.module, weights)
            # The captured graph has the weights that the network started with.
            network = stretch(self.module, lowered.plan)
            self.check_same(network, is_file_run=False)
            return network
        network = build_module(lowered, self.captured.weights if weights is None else None)
        if weights is not None:
            load_weights(network, weights)
        # Branches compute something else by intent; what they were cut from must not.
        self.check_same(network if self.plan is None else self.rebuilt())
        return network

    def rebuilt(self) -> nn.Module:
        """Return the original, rebuilt from its graph."""
        import torch

        from nnstretch.capture.rebuild_module import build

        with torch.random.fork_rng(devices=[]):
            return build(self.graph, self.captured.weights)

    def check_same(self, rebuilt: nn.Module, is_file_run: bool = True) -> None:
        """Try a network that was rebuilt from its graph once beside its own module.

        `is_file_run`: an ONNX file is tried beside ONNX Runtime instead, where that runs it.

        Raises Mismatch where the graph is not what the module does, whatever the reason.
        """
        import torch

        from nnstretch.capture.example_inputs import draw_inputs, running_on_drawn_inputs
        from nnstretch.capture.exported_program import eval_mode, is_same, tensors_of

        drawn = draw_inputs(self.graph, 0)
        results: list[list[torch.Tensor]] = []
        for network in (self.module, rebuilt):
            inputs = [drawn[value.name].clone() for value in self.graph.inputs]
            reference_run = running_on_drawn_inputs(self.graph.name)
            with eval_mode(network), torch.no_grad(), reference_run:
                results.append(tensors_of(network(*inputs)))
        original = outputs_of_file(self.graph.name, inputs) if is_file_run else None
        if not is_same(original or results[0], results[1], LARGEST_DIFFERENCE):
            raise Mismatch(
                f"what was captured of {self.graph.name} computes something else than the module,"
                " on a random input, does its work depend on more than its inputs?"
            )


def outputs_of_file(spec: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    """Return what ONNX Runtime computes of an ONNX file; None where it is none, or cannot run."""
    import torch

    from nnstretch.files.model_text import parse_model_spec

    parsed = parse_model_spec(spec)
    if not parsed.source.endswith(".onnx") or parsed.outputs or len(inputs) != 1:
        return None
    try:
        from nnstretch.export.onnx.convert import OnnxRunner

        return [torch.from_numpy(OnnxRunner(parsed.source).run(inputs[0].numpy()))]
    except Exception:
        # Broad on purpose: what the runtime lacks, or takes for another type, is no fault of ours.
        return None


def show_notes(notes: Sequence[str], console: Any) -> None:
    """Print what was captured otherwise than the module has it."""
    for note in notes:
        console.print(f"[yellow]note:[/yellow] {note}")


def is_plan(spec: str) -> bool:
    """Return whether an argument names a plan file."""
    return spec.endswith((".yaml", ".yml"))


def load_model_argument(
    spec: str,
    inputs: Sequence[InputShape] = (),
    outputs: Sequence[str] = (),
    weights: str | None = None,
) -> LoadedModel:
    """Load the network that MODEL names, at these inputs, with these outputs only.

    It is built as the one that a file of `weights` is of was; they are not loaded.

    Raises UnknownName, BrokenFile, BadInput, BadPlan or CannotCapture.
    """
    plan, predicted = read_predicted_plan(spec) if is_plan(spec) else (None, None)
    if plan is not None:
        check_plan_model(plan, spec, inputs, outputs)
        inputs = (InputShape(plan.input_shape, dtype=plan.input_dtype),)
    # The collector takes a sixth of the time of importing torch and capturing.
    with PausedCollector():
        from nnstretch.capture import load_model
        from nnstretch.capture.example_inputs import example_inputs
        from nnstretch.capture.model_spec import spec_with
        from nnstretch.capture.torch_export import trace
        from nnstretch.stretch.weights.weights_file import seed_of_weights

        if plan is not None:
            check_model_file(plan.model, f"plan {spec}")
        model = plan.model if plan else spec_with(spec, inputs, outputs)
        module = load_model(model, seed_of_weights(weights))
        examples = example_inputs(model, module, inputs)
        return LoadedModel(spec, module, trace(module, examples, model), plan, predicted)


def check_plan_model(
    plan: Plan, spec: str, inputs: Sequence[InputShape], outputs: Sequence[str]
) -> None:
    """Check that a plan is of a network, whose inputs and outputs it says. Raises BadPlan."""
    if is_plan(plan.model):
        raise BadPlan(f"plan {spec} stretches {plan.model}, another plan, it must name a network")
    for option, values in (("input", inputs), ("outputs", outputs)):
        if values:
            raise BadInput(f"--{option} with {spec}, command line, a plan has its network's own")


def check_model_file(model: str, holder: str) -> None:
    """Refuse a model whose file is not there, by the plan or recipe (`holder`) that names it.

    Raises UnknownName, which says from where its path is taken.
    """
    from nnstretch.files.model_text import parse_model_spec

    source = parse_model_spec(model).source
    file = Path(source.rpartition(":")[0] if ".py:" in source else source)
    if file.suffix in (".py", ".onnx", ".pt2") and not file.exists():
        where = "" if file.is_absolute() else f" (its path is taken from here, {Path.cwd()})"
        raise UnknownName(f"no model file {file}, {holder}, the file does not exist{where}")


def load_soc_of(name: str) -> Soc:
    """Load a chip by name or folder."""
    from nnstretch.predict import load_soc

    return load_soc(name)
