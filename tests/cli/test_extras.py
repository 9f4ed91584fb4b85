"""Every verb of an install that lacks its packages is one line that says how to bring them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.bundles import branched_bundle

from nnstretch.bundle.bundle import write_bundle
from nnstretch.cli.doctor.extras import (
    DISTRIBUTIONS,
    VERB_EXTRAS,
    missing_distributions,
    read_extras,
)
from nnstretch.cli.verbs import BY_NAME

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = [
    f'{line}; extra == "{extra}"'
    for extra, lines in PROJECT["optional-dependencies"].items()
    for line in lines
]
EXTRAS = read_extras(REQUIREMENTS)
NETWORK = "torchvision:resnet18"
SMALL = """
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU())
"""
COMMANDS = {
    "inspect": [NETWORK],
    "import": [str(ROOT / "tests/data/nn_stretch/example_R-34-CD.yaml"), "--out", "plan.yaml"],
    "profile": ["--out", "host", "--budget-s", "5"],
    "predict": [NETWORK, "--soc", "mi9"],
    "search": [NETWORK, "--soc", "mi9"],
    "study": [NETWORK, "--soc", "mi9", "--trials", "1"],
    "study capacity": [NETWORK],
    "train": ["digits", "--out", "trained"],
    "quantize": ["digits", "--weights", "none.safetensors", "--out", "net.tflite"],
    "export": [NETWORK, "--out", "net.nns"],
    "partition": [NETWORK, "--soc", "mi9", "--out", "pipe.nns"],
    "run": ["b.nns"],
    "accelerate": [NETWORK, "--accelerator", "tpuv1"],
    "bench": ["plan.yaml"],
}
BLOCKED = '''
import sys
class Blocked:
    """Import nothing but the standard library, the package and its base."""
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
from nnstretch.cli.doctor import extras
extras.requires = lambda name: {requirements!r}
from nnstretch.cli import main
sys.exit(main({arguments!r}))
'''
MODULES = {distribution: module for module, distribution in DISTRIBUTIONS.items()} | {
    "pytorch-lightning": "pytorch_lightning"
}


def run_without(extra: str, arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that has no package of an extra."""
    names = {MODULES.get(name, name.replace("-", "_")) for name in EXTRAS[extra]}
    program = BLOCKED.format(names=names, requirements=REQUIREMENTS, arguments=arguments)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=folder
    )


def test_an_extra_of_extras_brings_what_they_bring() -> None:
    assert EXTRAS["predict"] == EXTRAS["capture"]
    assert {"torch", "onnxruntime", "pytorch-lightning"} <= set(EXTRAS["all"])
    assert EXTRAS["run"] == ("onnxruntime", "pillow")
    assert missing_distributions(("numpy", "no-such-distribution")) == ["no-such-distribution"]


def test_every_verb_says_which_extra_it_needs() -> None:
    needs_base_only = {"schedule", "simulate", "report", "doctor"}
    assert VERB_EXTRAS.keys() == BY_NAME.keys() - needs_base_only
    assert set(VERB_EXTRAS.values()) <= EXTRAS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("verb", COMMANDS)
def test_a_base_install_names_the_extra_in_one_line(tmp_path: Path, verb: str) -> None:
    bundle = branched_bundle()
    write_bundle(tmp_path / "b.nns", bundle.manifest, bundle.files)
    (tmp_path / "plan.yaml").write_text(
        "format: 1\nmodel: torchvision:resnet18\ninput: [1, 3, 64, 64]\nmerge: concat\n"
        "segments:\n- {end: output, processor: cpu}\n"
    )
    done = run_without("all", [*verb.split(), *COMMANDS[verb]], tmp_path)
    assert done.stdout == ""
    assert done.returncode == 1, done.stderr[-500:]
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("nnstretch: ")
    assert done.stderr.rstrip().endswith(f"pip install 'nnstretch[{VERB_EXTRAS[verb]}]'")


@pytest.mark.slow
@pytest.mark.parametrize("verb", COMMANDS)
def test_help_needs_no_extra(tmp_path: Path, verb: str) -> None:
    done = run_without("all", [*verb.split(), "--help"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_export_needs_no_lightning(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SMALL)
    names = ("export", "net.py:make", "--input", "1,3,32,32", "--out", "net.nns")
    program = BLOCKED.format(
        names={"pytorch_lightning", "lightning_fabric", "torchmetrics"},
        requirements=REQUIREMENTS,
        arguments=list(names),
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "missing"),
    [("export", "onnxscript"), ("partition", "onnxscript"), ("study", "optuna")],
)
def test_a_package_that_is_missed_late_is_named_too(
    tmp_path: Path, verb: str, missing: str
) -> None:
    (tmp_path / "net.py").write_text(SMALL)
    words = [verb, "net.py:make", *COMMANDS[verb][1:], "--input", "1,3,32,32"]
    program = BLOCKED.format(names={missing}, requirements=REQUIREMENTS, arguments=words)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.rstrip().endswith(f"pip install 'nnstretch[{VERB_EXTRAS[verb]}]'")
