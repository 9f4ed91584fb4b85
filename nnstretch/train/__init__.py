"""Training with PyTorch Lightning: a recipe, its data, and `fit`.

    recipe.py           Recipe
    recipe_loader.py    YAML + overrides -> Recipe
    trainer.py          fit()
    preflight.py        checks before training
    branched_start.py   how a branched network begins
    classifier.py       LightningModule
    losses.py           losses, distillation teacher
    optimizers.py       optimizer, schedule, EMA
    callbacks.py        records of a training
    progress_bar.py     progress on standard error
    training_folder.py  files of a training
    checkpoints.py      training states in safetensors
    failures.py         errors in a user's words
    hardware.py         accelerator, processes, precision
    sync_batchnorm.py   sync batch norm on CPUs too
    data/               data sets, order, transforms

Names load on first use, so that reading a recipe or the command line's help costs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnstretch._interpreter import lazy_names

if TYPE_CHECKING:
    from nnstretch.stretch.weights.weights_file import first_mismatch as first_mismatch
    from nnstretch.stretch.weights.weights_file import load_weights as load_weights
    from nnstretch.stretch.weights.weights_file import save_weights as save_weights
    from nnstretch.stretch.weights.weights_file import seed_of_weights as seed_of_weights
    from nnstretch.train.branched_start import branched_network as branched_network
    from nnstretch.train.branched_start import initialize_network as initialize_network
    from nnstretch.train.data.datamodule import load_held_out as load_held_out
    from nnstretch.train.data.dataset import Dataset as Dataset
    from nnstretch.train.data.dataset import InMemoryImages as InMemoryImages
    from nnstretch.train.data.dataset import UnreadableImage as UnreadableImage
    from nnstretch.train.recipe import DataSettings as DataSettings
    from nnstretch.train.recipe import Recipe as Recipe
    from nnstretch.train.recipe_loader import load_recipe as load_recipe
    from nnstretch.train.recipe_loader import recipe_yaml as recipe_yaml
    from nnstretch.train.trainer import TrainResult as TrainResult
    from nnstretch.train.trainer import evaluate as evaluate
    from nnstretch.train.trainer import fit as fit
    from nnstretch.train.training_folder import EpochRecord as EpochRecord

_WEIGHTS = "nnstretch.stretch.weights.weights_file"
_HOMES = {
    "DataSettings": "recipe",
    "Dataset": "data.dataset",
    "EpochRecord": "training_folder",
    "InMemoryImages": "data.dataset",
    "Recipe": "recipe",
    "TrainResult": "trainer",
    "UnreadableImage": "data.dataset",
    "branched_network": "branched_start",
    "evaluate": "trainer",
    "fit": "trainer",
    "load_held_out": "data.datamodule",
    "load_recipe": "recipe_loader",
    "load_weights": _WEIGHTS,
    "recipe_yaml": "recipe_loader",
    "save_weights": _WEIGHTS,
    "seed_of_weights": _WEIGHTS,
    "initialize_network": "branched_start",
    "first_mismatch": _WEIGHTS,
}
__all__ = sorted(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
