"""Predictors judged: speed, networks never sampled, how often intervals hold; what is fused.

python scripts/predictors speed --soc mi9 --soc profiles/host_onnxruntime
python scripts/predictors networks --budget-s 420 --out docs/results/predictor_validation.md
python scripts/predictors intervals profiles/host_onnxruntime profiles/host_litert
python scripts/predictors named det.onnx@1,3,320,320 --soc profiles/host --soc profiles/host_det
python scripts/predictors fusion torchvision:resnet18
python scripts/predictors prior torchvision:resnet34 ... --out nnstretch/profile/prior.csv
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

import fused_kernels
import held_out_networks
import interval_coverage
import kernel_prior
import named_networks
import predictor_speed

from nnstretch.bench.commands import parser_of_parts, run_part


def arguments() -> ArgumentParser:
    return parser_of_parts(
        __doc__,
        {
            "speed": predictor_speed,
            "networks": held_out_networks,
            "intervals": interval_coverage,
            "named": named_networks,
            "fusion": fused_kernels,
            "prior": kernel_prior,
        },
    )


if __name__ == "__main__":
    sys.exit(run_part(arguments()))
