"""Backends are chosen for all or for each processor; a choice without sense is one line."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.bundles import branched_bundle, image

from nnstretch.bundle.bundle import Bundle, write_bundle
from nnstretch.errors import BadInput, UnknownName
from nnstretch.run import Session
from nnstretch.run.backends.registry import choose_backends, describe_choice

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return branched_bundle(segments=2, predicted=False)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, {"cpu": "onnxruntime", "dsp": "onnxruntime"}),
        ("openvino", {"cpu": "openvino", "dsp": "openvino"}),
        ("onnxruntime,dsp=openvino:GPU", {"cpu": "onnxruntime", "dsp": "openvino:GPU"}),
        ("dsp=openvino", {"cpu": "onnxruntime", "dsp": "openvino"}),
        ({"dsp": "openvino"}, {"cpu": "onnxruntime", "dsp": "openvino"}),
    ],
)
def test_a_backend_for_all_or_for_each_processor(
    bundle: Bundle, choice: object, expected: dict[str, str]
) -> None:
    names = choose_backends(choice, bundle)  # type: ignore[arg-type]
    assert names.keys() == {sub.name for sub in bundle.manifest.subgraphs}
    assert describe_choice(names, bundle.manifest) == expected


def test_two_formats_on_one_processor_are_two_backends(bundle: Bundle) -> None:
    subs = (replace(bundle.manifest.subgraphs[0], format="litert"), *bundle.manifest.subgraphs[1:])
    mixed = replace(bundle, manifest=replace(bundle.manifest, subgraphs=subs))
    assert describe_choice(choose_backends(None, mixed), mixed.manifest) == {
        "cpu": "litert, onnxruntime",
        "dsp": "onnxruntime",
    }


@pytest.mark.parametrize(
    ("choice", "error", "message"),
    [
        (
            "tensorrt",
            UnknownName,
            (
                r"^unknown backend 'tensorrt', session, it is one of onnxruntime, litert,"
                r" openvino\[:DEVICE\], torch"
            ),
        ),
        ("", UnknownName, "^unknown backend ''"),
        ({"cpu": 3}, UnknownName, "^unknown backend '3'"),
        (
            "npu=onnxruntime",
            UnknownName,
            "^unknown processor 'npu', backend for bundle, it uses cpu, dsp$",
        ),
        (
            "onnxruntime:GPU",
            UnknownName,
            "^unknown device 'GPU', backend onnxruntime, it has one only$",
        ),
        ("openvino:", UnknownName, "^unknown device '', backend openvino, none is named$"),
        (
            "onnxruntime,openvino",
            BadInput,
            (
                "^backends onnxruntime and openvino, all processors, one for all or PROCESSOR=NAME"
                " for each$"
            ),
        ),
        (
            "cpu=onnxruntime,cpu=openvino",
            BadInput,
            "^backends onnxruntime and openvino, processor cpu, it can have one$",
        ),
        (
            "litert",
            BadInput,
            "^backend litert, sub-graph stem of bundle, it reads litert and the file is onnx$",
        ),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(
    bundle: Bundle, choice: object, error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        Session(bundle, clock="real", backend=choice)  # type: ignore[arg-type]


def test_no_threads_compute_nothing(bundle: Bundle) -> None:
    with pytest.raises(
        BadInput, match=r"^threads is 0, backends of bundle, from 1 to 1024 compute$"
    ):
        Session(bundle, clock="real", threads=0)


def test_more_threads_give_the_same_numbers(bundle: Bundle) -> None:
    with Session(bundle, clock="real", threads=2) as two, Session(bundle, clock="real") as one:
        np.testing.assert_allclose(two.run(image(bundle)), one.run(image(bundle)), atol=1e-5)


def test_a_backend_that_is_not_installed_is_one_line(bundle: Bundle, tmp_path: Path) -> None:
    """In an interpreter in which the packages cannot be imported."""
    write_bundle(tmp_path / "a.nns", bundle.manifest, bundle.files)
    code = (
        "import sys\nfor name in ('onnxruntime', 'openvino', 'ai_edge_litert', 'tflite_runtime'):"
        " sys.modules[name] = None\nfrom nnstretch.run import Session\nfrom"
        " nnstretch.run.backends.litert import _interpreter_class\nfrom nnstretch.errors import"
        f" BadInput\na = {str(tmp_path / 'a.nns')!r}\nfor call in (lambda: Session(a,"
        " clock='real'), lambda: Session(a, clock='real', backend='openvino'),"
        " _interpreter_class):\n    try: call()\n    except BadInput as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second, third = done.stdout.splitlines()
    assert first.startswith("ONNX Runtime is not installed (")
    assert second.startswith("OpenVINO is not installed (")
    assert third.startswith("LiteRT is not installed (")
