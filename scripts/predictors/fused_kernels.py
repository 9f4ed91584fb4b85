"""What a backend fuses, and whether our kernels of networks are what ONNX Runtime launches.

For networks, the launches of ONNX Runtime's own records are counted beside the kernels that the
rules find.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path

from nnstretch.kernel import FusionRules
from nnstretch.predict.fusion_rules_json import rules_document
from nnstretch.profile.backends.registry import meter_for
from nnstretch.profile.fusion_probe import fused_pairs
from nnstretch.structure.kernel_fusion import fuse_kernels


def launched_operators(network: str) -> Counter[str]:
    """Count the operators of ONNX Runtime's optimized graph as one run launches them."""
    import onnxruntime
    import torch

    from nnstretch.capture import default_input, load_model
    from nnstretch.profile.backends.onnx_network import to_onnx
    from nnstretch.profile.backends.onnxruntime_records import is_launch, session_options

    module = load_model(network).eval()
    example = torch.randn(default_input(network, module))
    with tempfile.TemporaryDirectory() as folder:
        options = session_options()
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "records")
        session = onnxruntime.InferenceSession(
            to_onnx(module, example), options, providers=["CPUExecutionProvider"]
        )
        session.run(None, {session.get_inputs()[0].name: example.numpy()})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return Counter(event["args"]["op_name"] for event in events if is_launch(event))


def predicted_kernels(network: str, rules: FusionRules) -> Counter[str]:
    """Count the kernels that the rules find in a network."""
    import torch

    from nnstretch.capture import default_input, load_model
    from nnstretch.capture.torch_export import capture

    module = load_model(network).eval()
    graph = capture(module, torch.zeros(default_input(network, module)), network)
    kernels = fuse_kernels(graph, rules)
    return Counter(kernel.op if kernel.kind == "reorder" else kernel.kind for kernel in kernels)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the part's arguments to its parser."""
    parser.add_argument("networks", nargs="*", metavar="NETWORK")
    parser.add_argument("--backend", default="onnxruntime")


def run(args: argparse.Namespace) -> int:
    """Print the rules of a backend, and the kernels of the networks that the command line names."""
    meter = meter_for(args.backend)
    rules = meter.rules or fused_pairs(meter)
    print(json.dumps(rules_document(rules), indent=2))
    for network in args.networks:
        kernels, launches = predicted_kernels(network, rules), launched_operators(network)
        print(network)
        print(f"  kernels   {kernels.total()}: {dict(kernels.most_common())}")
        print(f"  launches  {launches.total()}: {dict(launches.most_common())}")
    return 0
