"""Stream photographs through four workers: load, two halves of the detector, boxes.

Then draw what was found, and when.

python examples/detection/stream.py --out detection        # after this, open detection/report.html
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import BytesIO, StringIO
from os.path import relpath
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from detector import CLASSES, WEIGHTS
from PIL import Image, ImageDraw
from scenes import HELD_OUT, PHOTO_PX, Scene, views
from scores import precision, recall
from stages import SCALE, boxes, load

from nnstretch.bundle.bundle import read_bundle
from nnstretch.cli import main as nnstretch
from nnstretch.run.pipelines.pipeline import Pipeline
from nnstretch.run.pipelines.sequential import SequentialPipeline

HERE = Path(__file__).resolve().parent
CALLS = {"stages:load": load, "stages:boxes": boxes}
COLOURS = ("#ffd400", "#00e5ff", "#ff4fa3", "#7dff5a")
SIDE_PX = 2 * PHOTO_PX // SCALE
AT_ONCE = 50
"""Photographs between two looks at who is faster."""


def verb(*words: str | Path) -> dict[str, object]:
    """A command of nnstretch with --json, printed as one would type it.

    Exits as it does where it refuses.
    """
    print("nnstretch", *words, file=sys.stderr)
    said = StringIO()
    with redirect_stdout(said):
        status = nnstretch([*map(str, words), "--json"])
    if status:
        raise SystemExit(status)
    return dict(json.loads(said.getvalue()))


def partitioned(folder: Path, soc: str) -> Path:
    """The detector in two halves of equal weight, with a Python stage before and one behind, in one
    file.
    """
    words = (
        "--weights",
        WEIGHTS,
        "--input",
        f"1,3,{SIDE_PX},{SIDE_PX}",
        "--soc",
        soc,
        "--stages",
        "2",
        "--processors",
        "cpu,cpu",
        "--fallback",
        "nearest",
    )
    around = (
        "--before",
        "stages:load",
        "--after",
        "stages:boxes",
        "--out",
        folder / "detector.nns",
    )
    found = verb("partition", f"{relpath(HERE / 'detector.py')}:make", *words, *around)
    (folder / "partition.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return folder / "detector.nns"


def streamed(bundle: Path, scenes: Sequence[Scene]) -> list[np.ndarray]:
    """All photographs through the pipeline, a few at a time in turns with the same stages one after
    another; their boxes.
    """
    chain, found = SequentialPipeline(read_bundle(bundle), CALLS), list[np.ndarray]()
    rates: list[tuple[float, float]] = []
    with Pipeline(bundle, CALLS) as pipeline:
        pipeline.run(scenes[0].file)
        for begin in range(0, len(scenes), AT_ONCE):
            files = [one.file for one in scenes[begin : begin + AT_ONCE]]
            began_s = perf_counter()
            alone = [chain.run(file) for file in files]
            between_s = perf_counter()
            found += [result.value() for result in pipeline.stream(files)]
            rates.append(
                (len(files) / (between_s - began_s), len(files) / (perf_counter() - between_s))
            )
            for one, other in zip(alone, found[begin:], strict=True):
                np.testing.assert_array_equal(one, other)
        print(
            f"{'stage':8} {'items':>6} {'ms an item':>11} {'starved ms':>11} {'blocked ms':>11}"
            f" {'failed':>7}"
        )
        for row in pipeline.statistics():
            print(
                f"{row.stage:8} {row.items:6} {row.service_us / 1e3:11.3f}"
                f" {row.starved_us / 1e3:11.1f} {row.blocked_us / 1e3:11.1f} {row.failed:7}"
            )
    alone_s, ours_s = (median(rate[side] for rate in rates) for side in (0, 1))
    gain = median(ours / alone for alone, ours in rates)
    print(
        f"one after another {alone_s:.0f} images/s, pipeline {ours_s:.0f} images/s, {gain:.2f}x"
        f" (medians of {len(rates)} turns)"
    )
    return found


def drawn(
    scenes: Sequence[Scene], found: Sequence[np.ndarray], path: Path, columns: int = 3
) -> None:
    """Photographs with the boxes that the pipeline gave for them."""
    tiles = []
    for one, rows in zip(scenes, found, strict=True):
        image = Image.open(BytesIO(one.file)).convert("RGB")
        pen = ImageDraw.Draw(image)
        for left, top, right, bottom, score, label in rows:
            corners = [
                (float(left) * image.width, float(top) * image.height),
                (float(right) * image.width, float(bottom) * image.height),
            ]
            pen.rectangle(corners, outline=COLOURS[int(label)], width=2)
            pen.text(
                (corners[0][0] + 3, corners[0][1] + 1),
                f"{CLASSES[int(label)]} {score:.2f}",
                fill=COLOURS[int(label)],
                stroke_width=2,
                stroke_fill="#000",
            )
        tiles.append(image)
    wide, high = tiles[0].size
    sheet = Image.new("RGB", (columns * wide, -(-len(tiles) // columns) * high))
    for number, tile in enumerate(tiles):
        sheet.paste(tile, (number % columns * wide, number // columns * high))
    sheet.quantize(128).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("detection"),
        help="folder for bundle, trace, report and picture",
    )
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--soc", default="mi9", help="chip whose times balance the halves")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    scenes = [views(number, HELD_OUT) for number in range(args.images)]
    bundle = partitioned(args.out, args.soc)
    found = streamed(bundle, scenes)
    truths = [one.truth for one in scenes]
    right = (
        f"recall {recall(found, truths):.3f}, precision {precision(found, truths):.3f} at"
        " overlap 0.5"
    )
    print(f"{sum(map(len, truths))} shapes on {len(scenes)} held-out photographs: {right}")
    drawn(scenes[:3], found[:3], args.out / "boxes.png")
    np.save(args.out / "photo.npy", np.frombuffer(scenes[0].file, np.uint8))
    sys.path.insert(0, str(HERE))
    allowed = (
        "--allow",
        "stages:load",
        "--allow",
        "stages:boxes",
        "--input",
        args.out / "photo.npy",
        "--trace",
        args.out / "trace_pipeline.json",
    )
    run = verb(
        "run",
        bundle,
        "--mode",
        "pipeline",
        "--clock",
        "real",
        "--repeat",
        str(args.images),
        *allowed,
    )
    (args.out / "run_pipeline.json").write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
    verb("report", args.out, "--out", args.out / "report.html")
    print(f"{args.out / 'boxes.png'} and {args.out / 'report.html'} written")


if __name__ == "__main__":
    main()
