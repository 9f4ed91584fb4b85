"""The short training of a trial: what stops it is one line, and the caller's generators stay."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.trainings import SMALL, small_net
from torch import nn

from nnstretch.errors import BadInput
from nnstretch.study.short_training import train_with_reports

SHORT = replace(
    SMALL,
    data=replace(SMALL.data, held_out=0.9),
    trainer=replace(SMALL.trainer, max_epochs=1),
)


def test_what_stops_it_is_said_in_one_line(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(768, 10), nn.BatchNorm1d(10))
    data = replace(SHORT.data, batch_images=8)
    alone = replace(SHORT, data=data, trainer=replace(SHORT.trainer, micro_batches=8))
    with pytest.raises(BadInput) as refusal:
        train_with_reports(network, alone, tmp_path, lambda *_: None)
    assert str(refusal.value).startswith(
        "the training of a trial stopped, a batch norm has one image to go by, "
    )


def test_the_generators_of_its_caller_stay_as_they_are(tmp_path: Path) -> None:
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    reported: list[int] = []
    accuracy = train_with_reports(
        small_net(), SHORT, tmp_path, lambda epoch, _: reported.append(epoch)
    )
    assert reported == [1]
    assert 0 <= accuracy <= 1
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert after == before
