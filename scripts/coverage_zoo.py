"""What of the model zoos can be captured, rebuilt exactly, cut and stretched, and why the rest not.

    python scripts/coverage_zoo.py [--only PATTERN] [--cache zoo.jsonl] [--out docs/results/coverage_zoo.md]
    [--memory-gb 8]

For every torchvision classification network and one network of each timm family (its smallest or
nearly so):
- captured: torch.export gives a graph of rules we know how to read;
- equal: with every parameter and every norm statistic randomised, the plan that branches nothing
  has the
  network's exact parameter count and its outputs to 1e-5 (largest difference over largest output);
- cuts: possible meeting points;
- stretchable: a two-branch plan (depths 0.5x and 0.75x, widths 0.5x) builds, a forward and backward
  step gives
  finite gradients for all parameters, and at least half of the MACs lie in branched segments.

Networks run one after another, each in a process of its own whose data is limited to --memory-gb.
With --cache a run that was interrupted goes on where it stopped; delete the file after a change of
the rules.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import resource
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

import timm
import torch
import torchvision

from nnstretch.bench.commands import command_parser, run_command
from nnstretch.bench.markdown import markdown_row, markdown_table
from nnstretch.capture import default_input, load_model, trace
from nnstretch.errors import NnstretchError
from nnstretch.files.atomic import write_text
from nnstretch.graph import Graph
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import NetworkAnalysis, lower, single_processor_plan
from nnstretch.stretch.lowering.two_branch_plan import CoveragePlan, two_branches
from nnstretch.stretch.weights.branched_module import build_module
from nnstretch.structure.cuts import INPUT
from nnstretch.structure.macs import CONVOLUTIONS

BATCH, DEPTHS, WIDTH = 2, (0.5, 0.75), 0.5
EQUAL, ENOUGH = 1e-5, 0.5
HUGE_PARAMS = 300_000_000
TIMEOUT_S = 900
LOWERED = {
    "timm:convmixer_1536_20": (2, 3, 64, 64),
    "timm:naflexvit_base_patch16_gap": (2, 3, 128, 128),
}
"""Inputs that are made smaller to spare memory; everything else runs at its own size."""
TIMM = """
beit_base_patch16_224 botnet26t_256 eca_halonext26ts halonet26t lambda_resnet26t bat_resnext26ts gcresnext26ts gernet_s mobileone_s0
repvgg_a0 resnet32ts cait_xxs24_224 coat_lite_tiny coat_tiny convit_tiny convmixer_768_32 convnext_atto convnextv2_atto cpubone_nano
crossvit_tiny_240 csatv2 cs3darknet_s cspresnet50 cspdarknet53 darknet53 cspnext_tiny davit_tiny deit_tiny_patch16_224
deit3_small_patch16_224 densenet121 densenetblur121d dla34 dla46_c dla60_res2net dpn48b dpn68 edgenext_xx_small efficientformer_l1
efficientformerv2_s0 efficientnet_b0 efficientnet_es efficientnet_lite0 efficientnet_cc_b0_4e efficientnetv2_rw_t mixnet_s mnasnet_small
fbnetc_100 spnasnet_100 tinynet_e mobilenetv1_100 mobilenetv2_050 efficientvim_m1 efficientvit_b0 efficientvit_m0 eva02_tiny_patch14_224
fasternet_t0 fastvit_t8 focalnet_tiny_srf gcvit_xxtiny ghostnet_050 ghostnetv2_100 ghostnetv3_050 hardcorenas_a hgnet_tiny hgnetv2_b0
hiera_tiny_224 hrnet_w18_small iformer_t inception_next_atto inception_resnet_v2 inception_v3 inception_v4 lcnetv2_small levit_128s
levit_conv_128s lowformer_b0 mambaout_femto maxvit_pico_rw_256 coatnet_pico_rw_224 coatnext_nano_rw_224 caformer_s18 convformer_s18
poolformer_s12 poolformerv2_s12 mixer_s32_224 gmlp_ti16_224 resmlp_12_224 lcnet_050 mobilenetv3_small_050 mobilenetv4_conv_small
mobilenetv4_hybrid_medium fbnetv3_b mobilevit_xxs mobilevitv2_050 mvitv2_tiny nasnetalarge nest_tiny nextvit_small eca_nfnet_l0 nfnet_l0
nf_regnet_b0 nf_resnet26 dm_nfnet_f0 pit_ti_224 pnasnet5large pvt_v2_b0 rdnet_tiny regnetx_002 regnety_002 regnetz_b16 regnetv_040
repghostnet_050 repvit_m0_9 res2net50_26w_4s res2next50 resnest14d resnet10t resnet18d ecaresnet26t seresnet18 resnetrs50
wide_resnet50_2 resnetv2_18 resnetv2_50x1_bit rexnet_100 selecsls42b legacy_seresnet18 legacy_senet154 sequencer2d_s shvit_s1 skresnet18
starnet_s050 swiftformer_xs swin_tiny_patch4_window7_224 swin_s3_tiny_224 swinv2_tiny_window8_256 swinv2_cr_tiny_224 tiny_vit_5m_224
tnt_s_patch16_224 tresnet_m twins_pcpvt_small twins_svt_small vgg11_bn visformer_tiny vit_tiny_patch16_224 vit_small_r26_s32_224
vit_relpos_small_patch16_224 samvit_base_patch16_224 vitamin_small_224 volo_d1_224 vovnet39a ese_vovnet19b_slim legacy_xception
xception41 xcit_nano_12_p16_224 naflexvit_base_patch16_gap
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found out about one network; the last field says why where something is missing."""

    model: str
    captured: bool = False
    convolutional: bool = False
    params: int = 0
    params_equal: bool = False
    error: float | None = None
    """Unbranched plan against the original, relative."""
    cuts: int = 0
    share: float = 0.0
    """Of the MACs, inside branched segments."""
    built: bool = False
    """The two-branch plan builds and its gradients are finite."""
    reason: str = ""
    seconds: float = 0.0

    @property
    def equal(self) -> bool:
        return self.params_equal and self.error is not None and self.error <= EQUAL

    @property
    def stretchable(self) -> bool:
        return self.built and self.share >= ENOUGH


def networks() -> list[str]:
    vision = [
        f"torchvision:{name}" for name in torchvision.models.list_models(module=torchvision.models)
    ]
    return vision + [f"timm:{name}" for name in TIMM.split()]


def randomise(module: torch.nn.Module, seed: int) -> None:
    """Every parameter and statistic moves, so that zero-initialised heads and gates hide nothing.

    Variances stay positive.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            scale = 0.1 * float(parameter.std()) if parameter.numel() > 1 else 0.0
            parameter.add_(torch.randn(parameter.shape, generator=generator) * (scale or 0.05))
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
            elif name.endswith("running_var"):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))


def convolutional(graph: Graph) -> bool:
    """Mixes pixels by windows in more than its stem, and nowhere by attention."""
    specs = graph.specs()
    windows = sum(
        max(specs[n.inputs[1]].shape[2:]) > 1
        for n in graph.nodes
        if n.kind in CONVOLUTIONS and len(n.inputs) > 1
    )
    attention = any(
        n.kind in ("scaled_dot_product_attention", "matmul", "bmm", "einsum") for n in graph.nodes
    )
    return windows > 1 and not attention


def examine(model: str) -> Iterator[Finding]:
    """Findings that grow, so that what was reached before a failure is kept."""
    yield (found := Finding(model))
    module = load_model(model)
    randomise(module, seed=0)
    shape = LOWERED.get(model, (BATCH, *default_input(model, module)[1:]))
    captured = trace(module, torch.zeros(shape), model)
    analysis = NetworkAnalysis(captured.graph)
    params = sum(p.numel() for p in module.parameters())
    found = replace(
        found,
        captured=True,
        convolutional=convolutional(captured.graph),
        params=params,
        cuts=len(analysis.cuts),
    )
    yield found
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    same = build_module(lower(analysis, sequential(analysis, model, params)), captured.weights)
    found = replace(
        found,
        params_equal=params == sum(p.numel() for p in same.parameters()),
        error=difference(module, same, x),
    )
    del same
    yield found
    survey = two_branches(analysis, model, ("cpu", "dsp"), DEPTHS, WIDTH)
    share = survey.branched_macs / max(1, captured.graph.macs)
    yield (found := replace(found, share=share, reason=excuse(survey, share)))
    network = build_module(lower(analysis, survey.plan), captured.weights).train()
    del module, captured
    network(x).square().mean().backward()
    wrong = [
        name
        for name, p in network.named_parameters()
        if p.grad is None or not bool(p.grad.isfinite().all())
    ]
    yield replace(
        found,
        built=not wrong,
        reason=(
            f"no finite gradient for {wrong[0]} and {len(wrong) - 1} more"
            if wrong
            else found.reason
        ),
    )


def sequential(analysis: NetworkAnalysis, model: str, params: int) -> Plan:
    """The plan that branches nothing.

    Of a huge network in one segment a cut, which inherits piece by piece and needs less memory.
    """
    if params < HUGE_PARAMS:
        return single_processor_plan(analysis.graph, model, "cpu")
    names = [INPUT, *(cut.name for cut in analysis.cuts)]
    segments = tuple(Segment(start, end, (Branch("cpu"),)) for start, end in pairwise(names))
    return Plan(model, analysis.graph.inputs[0].spec.shape, segments)


def difference(module: torch.nn.Module, other: torch.nn.Module, x: torch.Tensor) -> float:
    with torch.no_grad():
        expected, got = module.eval()(x), other.eval()(x)
    return float((expected - got).abs().max() / expected.abs().max())


def excuse(survey: CoveragePlan, share: float) -> str:
    """The first stage that should branch and does not, where too little branches."""
    telling = [
        line
        for line in survey.refused
        if "no weighted work" not in line and "keeps its width" not in line
    ]
    return "" if share >= ENOUGH else (telling or list(survey.refused) or ["one segment only"])[0]


def child(model: str, memory_gb: float, pipe: Connection) -> None:
    """Runs in a process of its own; sends every finding, the reason of a failure last."""
    limit = int(memory_gb * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    found = Finding(model)
    try:
        for found in examine(model):
            pipe.send(asdict(found))
    except MemoryError:
        pipe.send(asdict(replace(found, reason=f"skipped for memory, above {memory_gb:g} GB")))
    # Broad on purpose: whatever one network of hundreds raises is that network's finding.
    except Exception as error:
        kind = (
            ""
            if isinstance(error, NnstretchError)
            else f"{type(error).__name__} at {where(error)}: "
        )
        memory = "can't allocate memory" in str(error)
        reason = (
            f"skipped for memory, above {memory_gb:g} GB"
            if memory
            else kind + " ".join(str(error).split())[:300]
        )
        pipe.send(asdict(replace(found, reason=reason)))


def where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    last = next((f for f in reversed(frames) if "nnstretch" in f.filename), frames[-1])
    return f"{Path(last.filename).name}:{last.lineno}"


def run_one(model: str, memory_gb: float) -> Finding:
    started = time.monotonic()
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(model, memory_gb, send))
    process.start()
    send.close()
    found = Finding(model, reason="died before it said anything")
    while True:
        if not receive.poll(max(0.0, TIMEOUT_S - (time.monotonic() - started))):
            process.kill()
            found = replace(found, reason=f"stopped after {TIMEOUT_S} s")
            break
        try:
            found = Finding(**receive.recv())
        except EOFError:
            break
    process.join()
    if process.exitcode not in (0, None) and not found.reason:
        found = replace(found, reason=f"its process died with status {process.exitcode}")
    return replace(found, seconds=round(time.monotonic() - started, 1))


def cached(path: Path | None) -> dict[str, Finding]:
    if path is None or not path.exists():
        return {}
    rows = [
        json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
    ]
    return {row["model"]: Finding(**row) for row in rows}


def summary(findings: Sequence[Finding]) -> list[str]:
    convs = [f for f in findings if f.convolutional]
    captured = sum(f.captured for f in findings)
    counts = [
        ("networks", len(findings), len(findings)),
        ("captured", captured, len(findings)),
        ("unbranched plan equal, of those captured", sum(f.equal for f in findings), captured),
        ("stretchable, convolutional", sum(f.stretchable for f in convs), len(convs)),
        ("stretchable, all captured", sum(f.stretchable for f in findings), captured),
    ]
    return [f"{what}: {n} of {of} ({100 * n / max(1, of):.1f} %)" for what, n, of in counts]


HEADS = (
    *("network", "kind", "captured", "params", "equal (error)", "cuts", "MACs branched"),
    *("stretchable", "reason"),
)


def cells(f: Finding) -> list[str]:
    kind = "conv" if f.convolutional else "other" if f.captured else "?"
    error = "-" if f.error is None else f"{yes(f.equal)} ({f.error:.1e})"
    numbers = (f"{f.params:,}", error, str(f.cuts), f"{f.share:.2f}")
    return [f.model, kind, yes(f.captured), *numbers, yes(f.stretchable), f.reason]


def yes(value: bool) -> str:
    return "yes" if value else "NO"


def page(findings: Sequence[Finding]) -> str:
    versions = (f"{m.__name__} {m.__version__}" for m in (torchvision, timm, torch))
    head = f"""# What of the model zoos can be stretched

{", ".join(versions)}. Written by:

    python scripts/coverage_zoo.py --out docs/results/coverage_zoo.md
"""
    meaning = (__doc__ or "").split("\n\n", 2)[2].rpartition("\n\n")[0]
    counts = [f"- {line}" for line in summary(findings)]
    table = markdown_table(HEADS, map(cells, findings))
    return "\n".join([head, meaning, "", *counts, "", *table, ""])


def arguments() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("--only", default="*", help="names to run, as a shell pattern")
    parser.add_argument(
        "--cache", type=Path, help="JSON lines of what is known already; grows while it runs"
    )
    parser.add_argument("--out", type=Path, help="write the table as Markdown")
    parser.add_argument(
        "--memory-gb", type=float, default=8.0, help="limit of one network's process"
    )
    return parser


def main() -> int:
    args = arguments().parse_args()
    torch.set_num_threads(1)
    known = cached(args.cache)
    names = [name for name in networks() if fnmatch.fnmatch(name, args.only)]
    for number, name in enumerate(names, 1):
        if name not in known:
            known[name] = run_one(name, args.memory_gb)
            if args.cache is not None:
                with args.cache.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(known[name])) + "\n")
        row = f"{markdown_row(cells(known[name]))} {known[name].seconds} s"
        print(f"[{number}/{len(names)}] {row}", file=sys.stderr, flush=True)
    findings = [known[name] for name in names]
    print(*markdown_table(HEADS, map(cells, findings)), "", *summary(findings), sep="\n")
    if args.out is not None:
        write_text(args.out, page(findings))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
