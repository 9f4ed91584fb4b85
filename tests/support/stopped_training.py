"""A training that stops in the midst of an epoch."""

from __future__ import annotations

import torch

from nnstretch.train.classifier import Classifier


class Stopped(Exception):
    pass


def stop_in_epoch(classifier_step: object, epoch: int) -> object:
    def step(
        self: Classifier, batch: tuple[torch.Tensor, torch.Tensor], batch_number: int
    ) -> torch.Tensor:
        if self.current_epoch == epoch and batch_number == 5:
            raise Stopped
        return classifier_step(self, batch, batch_number)  # type: ignore[operator]

    return step
