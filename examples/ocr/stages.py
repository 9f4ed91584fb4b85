"""Python stages between the three networks: pixels to tensors, boxes to lines, indices to text."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from pages import MOST_LINES
from PIL import Image

LINE, TURN = (48, 320), (48, 192)
"""Height and width of a line as the recogniser and the classifier of direction read it."""
THRESHOLD = 0.3
"""Above it a pixel of the detector's map is text."""
SMALLEST_PX = 6
UNCLIP = 0.55
"""The detector marks the core of a line; of its height this much is added on every side."""
SURE = 0.9
"""Of a line that stands on its head."""
NETWORKS = {
    "detector": "ch_PP-OCRv4_det_infer.onnx",
    "classifier": "ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "recogniser": "ch_PP-OCRv4_rec_infer.onnx",
}


def network_file(name: str) -> Path:
    """Return the file of a network in the package rapidocr-onnxruntime."""
    spec = find_spec("rapidocr_onnxruntime")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            "pip install rapidocr-onnxruntime: its networks are what this example runs"
        )
    return Path(spec.submodule_search_locations[0]) / "models" / NETWORKS[name]


def prepare(page: np.ndarray) -> np.ndarray:
    """Page, uint8 [h, w, 3] -> float32 [1, 3, h, w] from -1 to 1."""
    return np.ascontiguousarray((page.astype(np.float32) / 127.5 - 1).transpose(2, 0, 1)[None])


def boxes_of(heat: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Map of text, [h, w] -> left, top, right, bottom of its lines, from top to bottom.

    Pages have one column of level lines: a run of rows with text is a line.
    """
    text = heat > THRESHOLD
    height, width = text.shape
    boxes = []
    for top, bottom in runs(text.any(1)):
        columns = np.flatnonzero(text[top:bottom].any(0))
        if bottom - top < SMALLEST_PX or not len(columns):
            continue
        margin = round(UNCLIP * (bottom - top))
        left, right = max(0, columns[0] - margin), min(width, columns[-1] + 1 + margin)
        boxes.append((int(left), max(0, top - margin), int(right), min(height, bottom + margin)))
    return boxes[:MOST_LINES]


def runs(marked: np.ndarray) -> list[tuple[int, int]]:
    """Return where runs of True begin and end."""
    steps = np.diff(np.concatenate([[0], marked.astype(np.int8), [0]]))
    begins, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


def crop(image: np.ndarray, heat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Prepared page and map -> its lines for the recogniser and for the classifier.

    [lines, 3, 48, 320] and [lines, 3, 48, 192]; rows without a line are empty.
    """
    pixels = ((image[0].transpose(1, 2, 0) + 1) * 127.5).round().clip(0, 255).astype(np.uint8)
    lines = np.zeros((MOST_LINES, 3, *LINE), dtype=np.float32)
    heads = np.zeros((MOST_LINES, 3, *TURN), dtype=np.float32)
    for row, (left, top, right, bottom) in enumerate(boxes_of(heat[0, 0])):
        piece = Image.fromarray(pixels[top:bottom, left:right])
        for target, (height, width) in ((lines, LINE), (heads, TURN)):
            wide = min(width, max(1, round(height * piece.width / piece.height)))
            scaled = np.asarray(piece.resize((wide, height), Image.Resampling.BILINEAR))
            target[row, :, :, :wide] = scaled.astype(np.float32).transpose(2, 0, 1) / 127.5 - 1
    return lines, heads


def turn(lines: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Turn lines that stand on their heads: directions are [lines, 2], upright and not."""
    upright = lines.copy()
    for row in np.flatnonzero(directions[:, 1] > SURE):
        upright[row] = lines[row, :, ::-1, ::-1]
    return upright


def read(probabilities: np.ndarray) -> list[str]:
    """[lines, steps, characters] -> text of every line: the best of each step, repeats once."""
    known = characters()
    texts = []
    for row in probabilities.argmax(2):
        kept = [i for k, i in enumerate(row.tolist()) if i and (k == 0 or row[k - 1] != i)]
        texts.append("".join(known[i] for i in kept).strip())
    return [text for text in texts if text]


@cache
def characters() -> tuple[str, ...]:
    """Return the recogniser's characters: blank, those its file lists, and the space."""
    import onnx

    model = onnx.load(str(network_file("recogniser")))
    listed = next(p.value for p in model.metadata_props if p.key == "character")
    return ("", *listed.splitlines(), " ")
