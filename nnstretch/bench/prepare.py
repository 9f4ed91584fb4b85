"""A fair pair for a bench: the original as one sub-graph and its branches, exported alike."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.bench.contenders import BenchVariant
from nnstretch.bundle.bundle import Bundle, read_bundle
from nnstretch.errors import BadInput, Mismatch, UnsupportedOp, one_line
from nnstretch.run.backends.registry import DEFAULTS, READS

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nnstretch.capture.torch_export import CapturedNetwork
    from nnstretch.plan import Plan

RANDOM_INPUTS = 16
NORM_BATCH = 4
RANDOM_SNR_DB = 3.0
"""Of int8 with random weights: signal and not only noise; times hardly depend on it."""


@dataclass(frozen=True, slots=True)
class BenchForm:
    """A backend, and the form of a network that it runs."""

    backend: str
    format: str
    int8: bool

    @property
    def precision(self) -> str:
        """Return int8 or float32."""
        return "int8" if self.int8 else "float32"


@dataclass(frozen=True)
class BenchNetwork:
    """A network and its plan, from which every form of both contenders is exported."""

    original: CapturedNetwork
    plan: Plan
    build_branched: Callable[[], nn.Module]
    """Build the stretched network anew, with its weights."""
    calibration: Callable[[], Sequence[Tensor]] | None = None
    """Inputs for int8, one inference each."""
    random_weights: bool = False
    """Nobody means the numbers: batch norms see the calibration inputs, int8 may be faint."""
    bundle: Bundle | None = None
    """The branches, if they were exported before."""


def requested_forms(
    backends: Sequence[str] | None, int8: bool, only_int8: bool, bundle: Bundle | None
) -> list[BenchForm]:
    """Return every form to measure; an exported bundle determines its own.

    Raises BadInput where the bundle is int8 and int8 was not asked for, or the other way round.
    """
    if bundle is not None:
        return bundle_forms(backends, int8, bundle)
    small = [BenchForm("litert", "litert", True)] if int8 else []
    if only_int8:
        return small
    names = backends or ("onnxruntime", *(["litert"] if int8 else []))
    return [BenchForm(name, READS[name.partition(":")[0]], False) for name in names] + small


def bundle_forms(backends: Sequence[str] | None, int8: bool, bundle: Bundle) -> list[BenchForm]:
    """Return the form of a bundle on each backend.

    Raises BadInput for int8 not asked for, or asked for of float32.
    """
    format = bundle.manifest.subgraphs[0].format
    is_int8 = bool(bundle.manifest.inputs[0].scale)
    if is_int8 and not int8:
        raise BadInput(
            f"{bundle.name} is int8, bench, give --int8 and --calibration, so"
            " that the original can be int8, too"
        )
    if int8 and not is_int8:
        raise BadInput(
            f"{bundle.name} is float32, bench, leave --int8 out, or name a bundle that was exported"
            " with it"
        )
    return [BenchForm(name, format, is_int8) for name in backends or (DEFAULTS[format],)]


def prepare_variants(
    network: BenchNetwork,
    forms: Sequence[BenchForm],
    tell: Callable[[str, float, float], None] = lambda what, done, total: None,
) -> tuple[list[BenchVariant], dict[str, str]]:
    """Export both contenders in every form, and say why forms are missing.

    Raises Mismatch and UnsupportedOp where the only form cannot be exported.
    """
    variants: list[BenchVariant] = []
    skipped: dict[str, str] = {}
    pairs: dict[tuple[str, bool], tuple[Bundle, Bundle, float | None]] = {}
    for number, form in enumerate(forms):
        tell(f"exporting for {form.backend}", number, len(forms))
        key = form.format, form.int8
        try:
            if key not in pairs:
                pairs[key] = export_pair(network, form.format, form.int8)
            variants.append(BenchVariant(form.backend, form.precision, *pairs[key]))
        except (UnsupportedOp, Mismatch) as refusal:
            if len(forms) == 1:
                raise
            skipped[f"{form.backend} {form.precision}"] = one_line(refusal)
    return variants, skipped


def export_pair(
    network: BenchNetwork, format: str, int8: bool
) -> tuple[Bundle, Bundle, float | None]:
    """Export original and branches in one format, with the lower signal-to-noise ratio of int8.

    Raises Mismatch, UnsupportedOp and BadInput as `export` does.
    """
    from nnstretch.export.bundle import export_bundle
    from nnstretch.export.subgraph_specs import ExportRequest
    from nnstretch.stretch.lowering.lower import lower, single_processor_plan
    from nnstretch.stretch.weights.branched_module import build_module

    captured = network.original
    plan = single_processor_plan(captured.graph, network.plan.model, network.plan.processors[0])
    calibration = network.calibration() if int8 and network.calibration else None
    settle = calibration if network.random_weights else None
    with tempfile.TemporaryDirectory() as folder:
        whole, branched = Path(folder) / "original.nns", Path(folder) / "branched.nns"
        request = ExportRequest(
            settle_norms(build_module(lower(captured.graph, plan), captured.weights), settle),
            plan,
            format,
            int8,
            calibration,
            least_snr_db=RANDOM_SNR_DB if network.random_weights else None,
        )
        exported = [export_bundle(request, whole)]
        if network.bundle is None:
            module = settle_norms(network.build_branched(), settle)
            request = replace(request, module=module, plan=network.plan)
            exported.append(export_bundle(request, branched))
        ratios = [each.int8_snr_db for each in exported if each.int8_snr_db is not None]
        branches = network.bundle or read_bundle(branched)
        return read_bundle(whole), branches, min(ratios, default=None)


def random_inputs(shape: Sequence[int]) -> list[Tensor]:
    """Draw calibration inputs by a fixed seed, for networks whose numbers nobody means."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return [torch.randn(tuple(shape), generator=generator) for _ in range(RANDOM_INPUTS)]


def settle_norms(module: Any, inputs: Sequence[Tensor] | None) -> Any:
    """Give batch norms the statistics of the inputs, so that random layers do not fade out.

    Without inputs, or without batch norms, the module stays as it is.
    """
    norms = any(getattr(layer, "running_mean", None) is not None for layer in module.modules())
    if norms and inputs is not None:
        import torch

        from nnstretch.stretch.weights.precise_bn import precise_bn

        starts = range(0, len(inputs), NORM_BATCH)
        precise_bn(module, [torch.cat(list(inputs[i : i + NORM_BATCH])) for i in starts])
    return module


def warn_low_snr(variants: Sequence[BenchVariant]) -> list[str]:
    """Warn about int8 networks whose signal-to-noise ratio would refuse them as networks."""
    from nnstretch.export.verify import MIN_SNR_DB

    warnings: list[str] = []
    for variant in variants:
        snr_db = variant.int8_snr_db
        if snr_db is not None and snr_db < MIN_SNR_DB:
            why = f"random weights leave a signal-to-noise ratio of {snr_db:.1f} dB"
            warnings.append(f"{variant.name}: {why}, for times only")
    return warnings
