"""What a backend fuses and how it lays out maps, and whether our kernels of a network are the ones
ONNX Runtime launches.

    python scripts/probe_fusion.py [--backend onnxruntime] [NETWORK ...]

For networks, the launches of ONNX Runtime's own records are counted beside the kernels that the
rules find.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path

import onnxruntime
import torch

from nnstretch.capture import default_input, load_model
from nnstretch.capture.torch_export import capture
from nnstretch.kernel import FusionRules
from nnstretch.predict.fusion_rules_json import rules_document
from nnstretch.profile.backends.onnx_network import to_onnx
from nnstretch.profile.backends.onnxruntime_meter import is_launch, session_options
from nnstretch.profile.backends.registry import meter_for
from nnstretch.profile.fusion_probe import fused_pairs
from nnstretch.structure.kernel_fusion import fuse_kernels


def launched(spec: str) -> Counter[str]:
    """Operators of ONNX Runtime's optimised graph as one run launches them."""
    module = load_model(spec).eval()
    example = torch.randn(default_input(spec, module))
    with tempfile.TemporaryDirectory() as folder:
        options = session_options()
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "records")
        session = onnxruntime.InferenceSession(
            to_onnx(module, example), options, providers=["CPUExecutionProvider"]
        )
        session.run(None, {session.get_inputs()[0].name: example.numpy()})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return Counter(event["args"]["op_name"] for event in events if is_launch(event))


def expected(spec: str, rules: FusionRules) -> Counter[str]:
    module = load_model(spec).eval()
    found = fuse_kernels(capture(module, torch.zeros(default_input(spec, module)), spec), rules)
    return Counter(kernel.op if kernel.kind == "reorder" else kernel.kind for kernel in found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", metavar="NETWORK")
    parser.add_argument("--backend", default="onnxruntime")
    args = parser.parse_args()
    meter = meter_for(args.backend)
    rules = meter.rules or fused_pairs(meter)
    print(json.dumps(rules_document(rules), indent=2))
    for spec in args.networks:
        ours, theirs = expected(spec, rules), launched(spec)
        print(
            f"{spec}\n  kernels   {sum(ours.values())}: {dict(ours.most_common())}\n  launches "
            f" {sum(theirs.values())}: {dict(theirs.most_common())}"
        )


if __name__ == "__main__":
    main()
