"""Batch norms over all processes, against PyTorch's over the same images at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, nn

from nnstretch.errors import BadInput
from nnstretch.stretch.weights.precise_bn import precise_bn
from nnstretch.train.sync_batchnorm import synchronized_norms, unsynchronized_norms


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


def images(mean: float, deviation: float, seed: int = 0) -> Tensor:
    return mean + deviation * torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(seed))


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    ("mean", "deviation"),
    [(0.0, 1.0), (17.7, 0.0), (37.3, 0.0), (10.0, 0.01), (50.0, 0.01), (1e3, 1.0)],
)
def test_shared_norms_are_pytorchs_also_where_a_channel_hardly_varies(
    mean: float, deviation: float
) -> None:
    plain, alone = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    given = [images(mean, deviation).requires_grad_() for _ in range(2)]
    weights = images(0, 1, seed=1)
    wanted = plain(given[0])
    (wanted * weights).sum().backward()
    with synchronized_norms(alone, wanted=True):
        found = alone(given[1])
        (found * weights).sum().backward()
    digits = 1e-4 * (1 + mean / max(deviation, 1))  # of float32, which holds 7
    assert torch.allclose(found, wanted, atol=digits)
    for mine, theirs in (
        (alone.running_mean, plain.running_mean),
        (alone.running_var, plain.running_var),
    ):
        assert torch.allclose(mine, theirs, rtol=1e-3, atol=1e-6)
    if deviation:
        assert torch.allclose(given[1].grad, given[0].grad, rtol=0.05, atol=0.01 / deviation)


@pytest.mark.usefixtures("one_process")
def test_precise_statistics_are_of_images_that_every_process_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight processes would each bring the same ones: they are not eight times as many."""
    monkeypatch.setattr(distributed, "get_world_size", lambda *_: 8)
    plain, alone = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    batches = [images(1, 2), images(2, 1, seed=1)]
    precise_bn(plain, batches)
    with synchronized_norms(alone, wanted=True):
        forward = alone.forward
        with unsynchronized_norms(alone):
            precise_bn(alone, batches)
        assert alone.forward is forward
    assert "forward" not in vars(alone)
    assert torch.equal(alone.running_var, plain.running_var)
    assert torch.equal(alone.running_mean, plain.running_mean)


@pytest.mark.usefixtures("one_process")
def test_norms_that_activate_still_do_and_other_kinds_are_refused() -> None:
    from timm.layers import BatchNormAct2d

    class Doubled(nn.BatchNorm2d):
        def forward(self, images: Tensor) -> Tensor:
            return 2 * super().forward(images)

    norm, given = BatchNormAct2d(3), images(0, 1)
    wanted = BatchNormAct2d(3)(given)
    with synchronized_norms(norm, wanted=True):
        assert torch.allclose(norm(given), wanted, atol=1e-5)
    assert float(wanted.detach().min()) == 0
    with (
        pytest.raises(
            BadInput, match="sync_norms is true, 0 is a Doubled with a forward pass of its own"
        ),
        synchronized_norms(nn.Sequential(Doubled(3)), True),
    ):
        pass
