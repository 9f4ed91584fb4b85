"""A short training that tells how it goes after every epoch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nnstretch.study.objective import Report
from nnstretch.train.classifier import Classifier
from nnstretch.train.data.loading import Pictures
from nnstretch.train.fitting import quiet, threads, train
from nnstretch.train.recipe import Recipe
from nnstretch.train.records import Records
from nnstretch.train.refusals import check_width


class Reporting(Records):
    """Records that are told on; what `report` raises ends the training."""

    def __init__(self, folder: Path, report: Report) -> None:
        super().__init__(folder)
        self._report = report

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        super().on_train_epoch_end(trainer, module)
        self._report(self.epochs[-1].epoch, self.epochs[-1].val_accuracy)


def train_reporting(module: nn.Module, recipe: Recipe, folder: Path, report: Report) -> float:
    """Train in place and in this process alone, of which a study has several.

    Share of held-out images after the last epoch. Raises BadInput where network and data do not fit.
    """
    alone = replace(recipe, trainer=replace(recipe.trainer, tensorboard=False, devices=1, nodes=1))
    with quiet(), threads(recipe.trainer.threads), torch.random.fork_rng(devices=[]):
        pictures = Pictures(alone)
        check_width(module, alone, len(pictures.dataset.classes))
        records = Reporting(folder, report)
        train(Classifier(module, alone, pictures.dataset), pictures, records, None, progress=False)
    return records.epochs[-1].val_accuracy
