"""A short training that reports its accuracy after every epoch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nnstretch.study.objective import AccuracyCallback
from nnstretch.train.callbacks import Records
from nnstretch.train.classifier import Classifier
from nnstretch.train.data.datamodule import Pictures
from nnstretch.train.data.sampling_order import fork_library_generators
from nnstretch.train.failures import explain_failures, silence_lightning
from nnstretch.train.preflight import check_network_fits_data
from nnstretch.train.recipe import Recipe
from nnstretch.train.trainer import torch_threads, train


class ReportingCallback(Records):
    """Records that report every epoch; an exception of `report` ends the training."""

    def __init__(self, folder: Path, report: AccuracyCallback) -> None:
        super().__init__(folder)
        self._report = report

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Record an epoch, and report its accuracy."""
        super().on_train_epoch_end(trainer, module)
        self._report(self.epochs[-1].epoch, self.epochs[-1].val_accuracy)


def train_with_reports(
    module: nn.Module, recipe: Recipe, folder: Path, report: AccuracyCallback
) -> float:
    """Train in place, in this process alone, and return the accuracy after the last epoch.

    The caller's generators stay as they are. Raises BadInput where network and data do not fit, or
    the machine refuses.
    """
    alone = replace(recipe, trainer=replace(recipe.trainer, tensorboard=False, devices=1, nodes=1))
    with (
        silence_lightning(),
        torch_threads(recipe.trainer.threads),
        torch.random.fork_rng(devices=[]),
        fork_library_generators(),
        explain_failures("the training of a trial"),
    ):
        pictures = Pictures(alone)
        check_network_fits_data(module, alone, len(pictures.dataset.classes))
        records = ReportingCallback(folder, report)
        train(Classifier(module, alone, pictures.dataset), pictures, records, None, progress=False)
    return records.epochs[-1].val_accuracy
