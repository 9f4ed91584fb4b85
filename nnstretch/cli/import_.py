"""Turn a published NN-Stretch configuration (AnyNet YAML of its pycls fork) into a plan.

The plan stretches the same network of torchvision or timm and has exactly the published parameters
and MACs; a configuration that contradicts itself is refused with the numbers that disagree.

  nnstretch import R-34-CD.yaml --out plan.yaml
"""

from __future__ import annotations

import argparse
from typing import Any

from nnstretch.cli.console import branches_text
from nnstretch.cli.output_path import check_writable

IMAGE_PX = 224
"""Side of the images for which MACs and latencies of published plans are known."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    parser.add_argument("config", metavar="CONFIG.yaml", help="a published configuration")
    parser.add_argument("--out", metavar="PLAN.yaml", help="where to write the plan")


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data."""
    import torch

    from nnstretch.capture import load_model
    from nnstretch.capture.torch_export import capture
    from nnstretch.files.plan_yaml import segment_data, write_plan
    from nnstretch.stretch.lowering.lower import lower
    from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
    from nnstretch.stretch.published.anynet import (
        check_config,
        import_plan,
        match_published_network,
        read_config,
    )

    out = check_writable(args.out, args.config)
    config = read_config(args.config)
    family = match_published_network(config)
    check_config(config, family)
    analysis = NetworkAnalysis(
        capture(load_model(family.model), torch.zeros(1, 3, IMAGE_PX, IMAGE_PX), family.model)
    )
    plan = import_plan(config, analysis, family)
    lowered = lower(analysis, plan)
    if out is not None:
        write_plan(out, plan)
    return {
        "model": plan.model,
        "segments": [segment_data(segment) for segment in plan.segments],
        "macs": lowered.macs,
        "params": lowered.params,
        "plan": str(out) if out else None,
        **({} if config.image_size == IMAGE_PX else {"configured_px": config.image_size}),
    }


def show(result: dict[str, Any], console: Any) -> None:
    """Print the result for people."""
    console.print(
        f"[bold]{result['model']}[/bold]  {result['macs'] / 1e6:,.1f} MMACs "
        f" {result['params'] / 1e6:,.2f} M parameters"
    )
    for segment in result["segments"]:
        console.print(f"  {segment['start']} -> {segment['end']}  [{branches_text(segment)}]")
    if "configured_px" in result:
        console.print(
            f"[yellow]note:[/yellow] MACs and plan are of {IMAGE_PX} px, the configuration trains"
            f" at {result['configured_px']} (IM_SIZE)"
        )
    if result["plan"]:
        console.print(f"plan written to {result['plan']}")
