"""Optuna's samplers, which propose trials, and pruners, which stop them early."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

SAMPLERS = ("tpe", "nsga2", "gp", "random")


def make_sampler(name: str, seed: int | None = None) -> BaseSampler:
    """Build the sampler of a name; `tpe` has a joint model of all parameters."""
    from optuna import samplers

    if name == "nsga2":
        return samplers.NSGAIISampler(seed=seed)
    if name == "gp":
        return samplers.GPSampler(seed=seed, warn_independent_sampling=False)
    if name == "random":
        return samplers.RandomSampler(seed=seed)
    return samplers.TPESampler(seed=seed, multivariate=True)


def make_pruner(name: str) -> BasePruner:
    """Build the pruner of a name."""
    from optuna import pruners

    return pruners.NopPruner() if name == "none" else pruners.MedianPruner(n_startup_trials=4)
