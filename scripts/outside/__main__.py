"""Networks from outside: how far each comes, and the text recogniser's parts beside ONNX Runtime.

python scripts/outside table --journal outside.jsonl --out docs/results/outside.md
python scripts/outside ocr --out docs/results/outside_ocr.md

Both want packages that the project does not: `uv pip install rapidocr-onnxruntime silero-vad magika
nudenet ultralytics segmentation-models-pytorch transformers`. What is missing is a row that says so.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

import ocr_equality
import outside_table

from nnstretch.bench.commands import parser_of_parts, run_part


def arguments() -> ArgumentParser:
    return parser_of_parts(__doc__, {"table": outside_table, "ocr": ocr_equality})


if __name__ == "__main__":
    sys.exit(run_part(arguments()))
