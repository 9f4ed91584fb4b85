"""OpenVINO computes what ONNX Runtime computes, on devices that are there, and forks are refused."""

from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from support.bundles import branched_bundle, conv, feature_map, image, subgraph
from support.within import said_by_fork

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Manifest, Port
from nnstretch.errors import BrokenFile, UnknownName
from nnstretch.graph import TensorSpec
from nnstretch.run import Session
from nnstretch.run.backends.registry import load_backend
from nnstretch.run.loaded_network import LoadedNetwork


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return branched_bundle(segments=2, predicted=False)


def test_openvino_gives_the_numbers_of_onnx_runtime(bundle: Bundle) -> None:
    pytest.importorskip("openvino")
    with (
        Session(bundle, clock="real", backend="dsp=openvino:CPU") as mixed,
        Session(bundle, clock="real") as plain,
    ):
        assert mixed.backends == {"cpu": "onnxruntime", "dsp": "openvino:CPU"}
        for seed in range(2):
            np.testing.assert_allclose(
                mixed.run(image(bundle, seed)), plain.run(image(bundle, seed)), atol=1e-4
            )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_of_a_process_that_has_used_openvino_is_refused(bundle: Bundle) -> None:
    pytest.importorskip("openvino")

    def run() -> object:
        with Session(bundle, clock="real", backend="openvino") as session:
            return session.run(image(bundle)).shape

    subgraph = bundle.manifest.subgraphs[0]
    backend = load_backend("openvino", subgraph, bundle.files[subgraph.file], bundle.name, 1)
    inputs = {port.name: np.zeros(port.spec.shape, np.float32) for port in subgraph.inputs}
    refusal = r"Stuck: process \d+ has no threads, backend openvino, it is a fork of one that"
    assert re.match(refusal, said_by_fork(run))
    assert re.match(refusal, said_by_fork(lambda: backend.run(inputs)))
    run()


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_the_next_request_does_not_overwrite_a_result(bundle: Bundle, backend: str) -> None:
    if backend == "openvino":
        pytest.importorskip("openvino")
    network = LoadedNetwork(bundle, backend)
    first, second = (network.inputs(image(bundle, seed)) for seed in range(2))
    network.compute("stem", first)
    kept = first["stem"].copy()
    network.compute("stem", second)
    assert np.array_equal(first["stem"], kept)
    assert not np.array_equal(first["stem"], second["stem"])


def test_an_unknown_device_is_told_which_there_are(bundle: Bundle) -> None:
    pytest.importorskip("openvino")
    with pytest.raises(UnknownName, match=r"^unknown device 'TPU', backend openvino, it finds CPU"):
        Session(bundle, clock="real", backend="dsp=openvino:TPU")


def test_a_device_of_several_goes_by_its_short_name() -> None:
    from nnstretch.run.backends.openvino import check_device

    core = SimpleNamespace(available_devices=["CPU", "GPU.0", "GPU.1"])
    check_device(core, "GPU")  # type: ignore[arg-type]
    check_device(core, "GPU.1")  # type: ignore[arg-type]
    with pytest.raises(
        UnknownName, match=r"^unknown device 'GP', backend openvino, it finds CPU, GPU.0, GPU.1$"
    ):
        check_device(core, "GP")  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_an_onnx_file_that_is_not_what_its_manifest_says_is_named(backend: str) -> None:
    if backend == "openvino":
        pytest.importorskip("openvino")
    x, y, wide = Port("x", feature_map()), Port("y", feature_map()), Port("y", feature_map(16))
    half = Port("y", TensorSpec(y.spec.shape, "float16"))
    good = conv(x, y, 0)
    for data, output, what in (
        (b"garbage", y, "the ONNX model, no protobuf"),
        (good, wide, "it writes y as 1x8x8x8 float32, the manifest says 1x16x8x8 float32"),
        (good, half, "the manifest says 1x8x8x8 float16"),
        (good, Port("z", feature_map()), r"it writes \['y'\], the manifest says \['z'\]"),
    ):
        broken = Bundle(
            Manifest("m", None, (x,), (output,), (subgraph("f", "cpu", data, [x], [output]),), 0.0),
            {"f.onnx": data},
        )
        with pytest.raises(BrokenFile, match=rf"^broken bundle bundle, member f\.onnx, .*{what}"):
            Session(broken, clock="real", backend=backend)


def test_openvino_is_imported_without_its_telemetry() -> None:
    """It told a server of every import, from a process that it forked."""
    pytest.importorskip("openvino")
    program = (
        "import sys, urllib.request\n"
        "urllib.request.urlopen = lambda *_: print('told', flush=True)\n"
        "from nnstretch.run.backends.openvino_import import import_openvino\n"
        "library = import_openvino()\n"
        "print(library.Core().available_devices)\n"
        "print([name for name in sys.modules if 'openvino_telemetry' in name])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "CPU" in done.stdout
    assert done.stdout.endswith("[]\n")
    assert "told" not in done.stdout
