"""Which accelerator, how many processes, which arithmetic.

A recipe's wishes as Lightning's settings.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from nnstretch.errors import BadInput
from nnstretch.train.recipe import TrainerSettings

LIGHTNING_PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def process_rank(wanted: TrainerSettings) -> int:
    """Return 0 for the process that speaks and writes for all that train together, known before
    Lightning has begun.

    torchrun's, SLURM's, or that of a process which Lightning started. A process that trains alone
    is the first, whatever the environment says: a cluster may number processes that have nothing to
    do with each other.
    """
    if resolve_process_counts(wanted, resolve_accelerator(wanted)) == (1, 1):
        return 0
    by_slurm = (
        is_started_by_slurm()
    )  # in a job without srun all that Lightning starts inherit the first one's number
    for name in ("RANK", "SLURM_PROCID") if by_slurm else ("RANK",):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return sum(
        int(os.environ[name])
        for name in ("NODE_RANK", "LOCAL_RANK")
        if os.environ.get(name, "").isdigit()
    )


def is_started_by_slurm() -> bool:
    """Return whether `srun` started this process, as Lightning sees it.

    Torchrun may have been started by it.
    """
    from pytorch_lightning.plugins.environments import SLURMEnvironment, TorchElasticEnvironment  # type: ignore[attr-defined]

    return SLURMEnvironment.detect() and not TorchElasticEnvironment.detect()


def cluster_environments() -> list[Any]:
    """Return SLURM without Lightning's saving and requeueing on a signal, which goes around the
    run's own folder; others as Lightning finds them.
    """
    from pytorch_lightning.plugins.environments import SLURMEnvironment  # type: ignore[attr-defined]

    return [SLURMEnvironment(auto_requeue=False)] if is_started_by_slurm() else []


def resolve_accelerator(wanted: TrainerSettings) -> str:
    """Return `cuda` or `cpu`. Raises BadInput when CUDA is asked for and missing."""
    if wanted.accelerator == "cuda" and not torch.cuda.is_available():
        raise BadInput("trainer.accelerator is cuda, PyTorch sees no card here, take auto or cpu")
    return (
        "cuda"
        if wanted.accelerator == "cuda"
        or (wanted.accelerator == "auto" and torch.cuda.is_available())
        else "cpu"
    )


def resolve_precision(wanted: TrainerSettings, accelerator: str) -> str:
    """Resolve the precision; `auto` is bf16 only where matrix units compute it.

    Elsewhere it is emulated and slower than fp32.

    Raises BadInput when fp16 is asked for without CUDA.
    """
    if wanted.precision == "fp16" and accelerator == "cpu":
        raise BadInput("trainer.precision is fp16, it needs CUDA, take bf16 or fp32")
    if wanted.precision != "auto":
        return LIGHTNING_PRECISIONS[wanted.precision]
    units = (
        torch.cuda.is_bf16_supported()
        if accelerator == "cuda"
        else bool(getattr(torch.cpu, "_is_amx_tile_supported", bool)())
    )
    return LIGHTNING_PRECISIONS["bf16" if units else "fp32"]


def precision_name(precision: str | None) -> str:
    """Return what a recipe calls Lightning's precision."""
    return next(name for name, called in LIGHTNING_PRECISIONS.items() if called == precision)


def tensor_memory_format(wanted: TrainerSettings) -> torch.memory_format:
    """Return the order in which images, weights and features lie in memory."""
    return torch.channels_last if wanted.channels_last else torch.contiguous_format


def resolve_process_counts(wanted: TrainerSettings, accelerator: str) -> tuple[int, int]:
    """Return processes on each machine, and machines; torchrun says so itself.

    Raises BadInput when the machine has fewer cards.
    """
    if os.environ.get("TORCHELASTIC_RUN_ID") and os.environ.get("LOCAL_WORLD_SIZE"):
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        return local, int(os.environ["WORLD_SIZE"]) // local
    everything = torch.cuda.device_count() if accelerator == "cuda" else 1
    devices = wanted.devices or everything
    if accelerator == "cuda" and devices > everything:
        raise BadInput(f"trainer.devices is {devices}, this machine has {everything} cards")
    return devices, wanted.nodes


def lightning_settings(wanted: TrainerSettings) -> dict[str, Any]:
    """Return keyword arguments of Lightning's Trainer. Raises BadInput for what this machine has
    not.
    """
    from pytorch_lightning.strategies import DDPStrategy

    accelerator = resolve_accelerator(wanted)
    devices, nodes = resolve_process_counts(wanted, accelerator)
    several = DDPStrategy(process_group_backend="gloo" if accelerator == "cpu" else "nccl")
    return {
        "accelerator": accelerator,
        "devices": devices,
        "num_nodes": nodes,
        "strategy": several if devices * nodes > 1 else "auto",
        "precision": resolve_precision(wanted, accelerator),
        "accumulate_grad_batches": wanted.micro_batches,
        "deterministic": wanted.deterministic,
        "use_distributed_sampler": False,  # the order of images already is shared out
    }
