"""Every operator of the C++ runtime on random shapes: strides, paddings, groups, broadcasting.

A few graphs in `make check`, any number by `--layer-graphs` (ten seconds each).
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from support.cpp import (  # noqa: E402
    CppRuntime,
    assert_close,
    cpp_runtime,  # noqa: F401
    outputs_in_cpp,
    outputs_in_torch,
)
from support.random_cpp_layers import SideBySide, drawn_steps  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Using padding='same'")]
GRAPHS = 3


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_random_layers_compute_what_pytorch_computes(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
    seed: int,
) -> None:
    compare(cpp_runtime, seed, tmp_path)


def test_more_random_layers_do(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    for seed in range(GRAPHS, request.config.getoption("--layer-graphs")):
        compare(cpp_runtime, seed, tmp_path / str(seed))


def compare(runtime: CppRuntime, seed: int, folder: Path) -> None:
    """Compare layers of a seed."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    rows, columns = rng.randint(5, 19), rng.randint(5, 19)
    x = torch.randn(rng.randint(1, 2), rng.choice([2, 3, 6, 8, 12]), rows, columns)
    module = SideBySide(drawn_steps(rng, x))
    assert_close(outputs_in_cpp(runtime, module, [x], folder), outputs_in_torch(module, [x]))
