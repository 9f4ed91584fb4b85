"""Read pages of text: three networks from outside and the Python between them as one pipeline.

python examples/ocr/stream.py --pages 40 --out ocr          # wants `pip install rapidocr-onnxruntime`

Detector in two halves, classifier of direction, two replicas of the recogniser. The same pages are
read by plain ONNX Runtime with two threads, in turns with the pipeline, and what both read is
compared with what was drawn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from time import perf_counter

import numpy as np
import onnxruntime
from pages import MOST_LINES, PAGE_PX, page
from stages import LINE, TURN, crop, network_file, prepare, read, turn

from nnstretch import Pipeline, load_model, load_soc
from nnstretch.bundle.bundle import write_bundle
from nnstretch.capture import trace
from nnstretch.capture.example_inputs import example_inputs
from nnstretch.graph import TensorSpec
from nnstretch.partition.build_manifest import ModuleFile, build_manifest
from nnstretch.partition.connect import PipelineConfig
from nnstretch.partition.export import draw_inputs, export_stages, module_file
from nnstretch.partition.module_graph import Module
from nnstretch.partition.partition import PartitionRequest, partitions
from nnstretch.partition.stage_modules import module_from_graph
from nnstretch.pipeline import TensorDecl
from nnstretch.soc_instances import instantiate
from nnstretch.stretch.cost.cost_model import CostModel

SHAPES = {
    "detector": (1, 3, *PAGE_PX),
    "classifier": (MOST_LINES, 3, *TURN),
    "recogniser": (MOST_LINES, 3, *LINE),
}
CALLS = {"stages:prepare": prepare, "stages:crop": crop, "stages:turn": turn, "stages:read": read}
AT_ONCE = 10
"""Pages between two looks at who is faster."""


def network(name: str, stages: int) -> list[tuple[Module, ModuleFile]]:
    """A network as modules of a pipeline: one, or as many stages, balanced by prediction."""
    spec = f"{network_file(name)}?input={','.join(map(str, SHAPES[name]))}"
    loaded = load_model(spec)
    captured = trace(loaded, example_inputs(spec, loaded), name)
    soc, names = instantiate(load_soc("mi9"), ("cpu", "cpu")[:stages])
    request = PartitionRequest(stages, names)
    best = partitions(captured.graph, soc, request, None, CostModel(soc, "nearest"))[0]
    examples = draw_inputs(captured.graph, 0)
    files = export_stages(best, captured.weights, examples, lambda *_: None)
    rows = []
    for number, (graph, file, cost) in enumerate(
        zip(best.subgraphs, files, best.stages, strict=True)
    ):
        rows.append((module_from_graph(f"{name}{number}", graph), module_file(file, cost)))
    return rows


def python(
    call: str, inputs: dict[str, tuple[int, ...] | None], outputs: dict[str, tuple[int, ...] | None]
) -> Module:
    """A function of stages.py as a module."""

    def declared(ends: dict[str, tuple[int, ...] | None]) -> tuple[TensorDecl, ...]:
        return tuple(TensorDecl(n, None if s is None else TensorSpec(s)) for n, s in ends.items())

    return Module(call.partition(":")[2], declared(inputs), declared(outputs), call=call)


def build(path: Path) -> None:
    """Write the pipeline of all three networks as one bundle."""
    (first, file_a), (second, file_b) = network("detector", 2)
    ((classifier, file_c),) = network("classifier", 1)
    ((recogniser, file_r),) = network("recogniser", 1)
    image, heat = SHAPES["detector"], (1, 1, *PAGE_PX)
    lines, heads = SHAPES["recogniser"], SHAPES["classifier"]
    texts = recogniser.outputs[0].spec
    begin = python("stages:prepare", {"page": None}, {"image": image})
    cut = python("stages:crop", {"image": image, "heat": heat}, {"lines": lines, "heads": heads})
    upright = python(
        "stages:turn", {"lines": lines, "directions": (MOST_LINES, 2)}, {"upright": lines}
    )
    assert texts is not None
    end = python("stages:read", {"probabilities": texts.shape}, {"text": None})
    config = PipelineConfig()
    config["input"]["page"].connect(config[begin]["input"]["page"])
    image_out = config[begin]["output"]["image"]
    for target in (first.inputs[0].name,):
        image_out.connect(config[first]["input"][target])
    for item in second.inputs:
        source = (
            config[first]["output"][item.name]
            if item.name in {o.name for o in first.outputs}
            else image_out
        )
        source.connect(config[second]["input"][item.name])
    image_out.connect(config[cut]["input"]["image"])
    config[second]["output"][0].connect(config[cut]["input"]["heat"])
    config[cut]["output"]["heads"].connect(config[classifier]["input"][classifier.inputs[0].name])
    config[cut]["output"]["lines"].connect(config[upright]["input"]["lines"])
    config[classifier]["output"][0].connect(config[upright]["input"]["directions"])
    config[upright]["output"]["upright"].connect(
        config[recogniser]["input"][recogniser.inputs[0].name]
    )
    config[recogniser]["output"][0].connect(config[end]["input"]["probabilities"])
    config[end]["output"]["text"].connect(config["output"][0])
    config[first].set(processors=("cpu0",))
    config[second].set(processors=("cpu1",))
    config[classifier].set(processors=("cpu0",))
    config[recogniser].set(processors=("cpu0", "cpu1"))
    file_r = ModuleFile(
        file_r.data,
        file_r.inputs,
        file_r.outputs,
        {name: us for name in ("cpu0", "cpu1") for us in file_r.predicted_us.values()},
    )
    files = {
        first.name: file_a,
        second.name: file_b,
        classifier.name: file_c,
        recogniser.name: file_r,
    }
    manifest, contents = build_manifest(config.graph, files, "PP-OCR", None)
    write_bundle(path, manifest, contents)


def plain_reader(threads: int) -> Callable[[np.ndarray], list[str]]:
    """The same with ONNX Runtime alone, one page after another."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    sessions = {}
    for name in SHAPES:
        file = str(network_file(name))
        sessions[name] = onnxruntime.InferenceSession(
            file, options, providers=["CPUExecutionProvider"]
        )

    def run(name: str, x: np.ndarray) -> np.ndarray:
        session = sessions[name]
        result: np.ndarray = session.run(None, {session.get_inputs()[0].name: x})[0]
        return result

    def reader(image: np.ndarray) -> list[str]:
        x = prepare(image)
        lines, heads = crop(x, run("detector", x))
        return read(run("recogniser", turn(lines, run("classifier", heads))))

    return reader


def characters_read(texts: Sequence[str], drawn: Sequence[str]) -> int:
    """How many characters of the drawn lines were read, in their order."""
    matcher = SequenceMatcher(None, "\n".join(drawn), "\n".join(texts), autojunk=False)
    return sum(block.size for block in matcher.get_matching_blocks())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("ocr"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    bundle = args.out / "ocr.nns"
    build(bundle)
    pages = [page(number) for number in range(args.pages)]
    reader = plain_reader(2)
    read_plain: list[list[str]] = []
    read_piped: list[list[str]] = []
    seconds = {"ONNX Runtime, two threads": 0.0, "pipeline, two cores": 0.0}
    with Pipeline(bundle, CALLS) as pipeline:
        reader(pages[0].image), list(pipeline.stream([pages[0].image]))
        for low in range(0, len(pages), AT_ONCE):
            images = [one.image for one in pages[low : low + AT_ONCE]]
            began = perf_counter()
            read_plain += [reader(image) for image in images]
            seconds["ONNX Runtime, two threads"] += perf_counter() - began
            began = perf_counter()
            read_piped += [result.value() for result in pipeline.stream(images)]
            seconds["pipeline, two cores"] += perf_counter() - began
    drawn = sum(len("\n".join(one.lines)) for one in pages)
    plain = sum(characters_read(t, p.lines) for t, p in zip(read_plain, pages, strict=True))
    piped = sum(characters_read(t, p.lines) for t, p in zip(read_piped, pages, strict=True))
    same = sum(a == b for a, b in zip(read_plain, read_piped, strict=True))
    print(
        f"{len(pages)} pages, {drawn} characters drawn: ONNX Runtime reads {plain / drawn:.1%},"
        f" the pipeline {piped / drawn:.1%}; {same} pages alike"
    )
    for name, total in seconds.items():
        print(f"{name}: {len(pages) / total:.2f} pages/s")
    return 0 if piped >= 0.95 * plain else 1


if __name__ == "__main__":
    sys.exit(main())
