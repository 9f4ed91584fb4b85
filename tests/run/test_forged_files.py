"""Forged sub-graphs against every backend, in processes of their own with a limit of time.

Each is refused in one line or runs: no crash, no hang, no other word.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.bundles import branched_bundle

from nnstretch.bundle.bundle import Bundle, write_bundle

TESTS = Path(__file__).parents[1]
LIMIT_S = 120


def outcomes(bundle: Bundle, backend: str, folder: Path, count: int, first: int = 0) -> Counter:
    path = folder / "bundle.nns"
    write_bundle(path, bundle.manifest, bundle.files)
    command = [sys.executable, "-m", "support.forged_worker", path, backend, first, count]
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        cwd=TESTS,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, (lines[-1:], done.stderr[-500:])
    assert len(lines) == count
    said = Counter(line.split()[1].rstrip(":") for line in lines)
    odd = [line for line in lines if line.split()[1] not in ("refused:", "ran")]
    assert not odd, odd[:3]
    return said


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "torch"])
def test_forged_onnx_files(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    said = outcomes(branched_bundle(), backend, tmp_path, 150)
    assert min(said["refused"], said["ran"]) > 10


@pytest.mark.slow
@pytest.mark.parametrize("int8", [False, True])
def test_forged_tflite_files(tmp_path: Path, int8: bool) -> None:
    pytest.importorskip("litert_torch")
    pytest.importorskip("ai_edge_quantizer")
    from support.exports import written

    said = outcomes(written("litert", int8).bundle, "litert", tmp_path, 150)
    assert min(said["refused"], said["ran"]) > 10
