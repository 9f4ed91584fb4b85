"""Exported files run under tflite-runtime 2.14 too, the last interpreter of that name, in an
environment of its own.

The environment is made once and kept in the user's cache (about 60 MB); where it cannot be made,
the tests are skipped and say why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("litert_torch")

from support.exports import images, tiny, written  # noqa: E402

from nnstretch.bundle.bundle import write_bundle  # noqa: E402

PACKAGES = ("tflite-runtime==2.14.0", "numpy<2", "pyyaml", "rich")
"""The last two are what nnstretch itself needs."""
WAIT_S, INSTALL_S = 5, 120
ROOT = Path(__file__).parents[2]


def made_in(folder: Path) -> str:
    """Empty where the environment is there now, else why not."""
    python = sys.executable if sys.version_info[:2] == (3, 11) else shutil.which("python3.11")
    if python is None:
        return "tflite-runtime 2.14 has no wheel for this Python, and there is no python3.11"
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=folder.parent))
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(aside / "bin" / "python"),
        "install",
        "--quiet",
        "--timeout",
        str(WAIT_S),
    ]
    try:
        for command in (
            [python, "-m", "venv", "--without-pip", str(aside)],
            [*install, "--retries", "0", *PACKAGES],
        ):
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALL_S, check=False
            )
            if done.returncode:
                return next(
                    iter(done.stderr.strip().splitlines()[-1:]),
                    f"{command[2]} ended with {done.returncode}",
                )
        aside.rename(folder)
    except (subprocess.TimeoutExpired, OSError) as error:
        return "" if folder.is_dir() else str(error)[:200]
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return ""


@pytest.fixture(scope="module")
def python() -> Path:
    """An interpreter that has tflite-runtime and nothing newer."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "nnstretch" / "tflite-runtime-2.14.0-py311"
    if not folder.is_dir() and (why := made_in(folder)):
        pytest.skip(f"no environment with {PACKAGES[0]}: {why}")
    return folder / "bin" / "python"


def ran(python: Path, code: str, *paths: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [str(python), "-c", code, *map(str, paths)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


INTERPRETER = """
import sys
import numpy as np
from tflite_runtime.interpreter import Interpreter
model, x, y = sys.argv[1:]
interpreter = Interpreter(model_path=model)
interpreter.allocate_tensors()
interpreter.set_tensor(interpreter.get_input_details()[0]["index"], np.load(x))
interpreter.invoke()
np.save(y, interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))
"""
SESSION = """
import sys
import numpy as np
from nnstretch.run import Session
bundle, x, y = sys.argv[1:]
with Session(bundle, clock="real") as session:
    np.save(y, np.stack([session.run(one) for one in np.load(x)]))
assert "tflite_runtime" in sys.modules and "ai_edge_litert" not in sys.modules
"""


@pytest.mark.slow
def test_one_sub_graph_gives_pytorchs_numbers(python: Path, tmp_path: Path) -> None:
    (tmp_path / "stem.tflite").write_bytes(written("litert").data("s0.cpu"))
    x = images(1, seed=3)[0]
    np.save(tmp_path / "x.npy", np.ascontiguousarray(x.permute(0, 2, 3, 1).numpy()))
    ran(python, INTERPRETER, tmp_path / "stem.tflite", tmp_path / "x.npy", tmp_path / "y.npy")
    with torch.no_grad():
        expected = tiny().segments[0](x).permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, atol=1e-4)


def test_a_whole_bundle_gives_pytorchs_numbers(python: Path, tmp_path: Path) -> None:
    bundle = written("litert").bundle
    write_bundle(tmp_path / "net.nns", bundle.manifest, bundle.files)
    inputs = images(4, seed=4)
    np.save(tmp_path / "x.npy", np.stack([x.numpy() for x in inputs]))
    ran(python, SESSION, tmp_path / "net.nns", tmp_path / "x.npy", tmp_path / "y.npy")
    with torch.no_grad():
        expected = np.stack([tiny()(x).numpy() for x in inputs])
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, atol=1e-4)
