"""Which accelerator, how many processes, which arithmetic: a recipe's wishes as Lightning's settings."""

from __future__ import annotations

import os
from typing import Any

import torch

from nnstretch.errors import BadInput
from nnstretch.train.recipe import Trainer

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def rank(wanted: Trainer) -> int:
    """0 for the process that speaks and writes for all that train together, known before Lightning has begun.

    torchrun's, SLURM's, or that of a process which Lightning started. A process that trains alone is the first, whatever the
    environment says: a cluster may number processes that have nothing to do with each other.
    """
    if processes_of(wanted, accelerator_of(wanted)) == (1, 1):
        return 0
    by_slurm = slurm_started()  # in a job without srun all that Lightning starts inherit the first one's number
    for name in ("RANK", "SLURM_PROCID") if by_slurm else ("RANK",):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return sum(int(os.environ[name]) for name in ("NODE_RANK", "LOCAL_RANK") if os.environ.get(name, "").isdigit())


def slurm_started() -> bool:
    """Whether `srun` started this process, as Lightning sees it; torchrun may have been started by it."""
    from pytorch_lightning.plugins.environments import SLURMEnvironment, TorchElasticEnvironment

    return SLURMEnvironment.detect() and not TorchElasticEnvironment.detect()


def cluster() -> list[Any]:
    """SLURM without Lightning's saving and requeueing on a signal, which goes around the run's own folder; others as Lightning finds them."""
    from pytorch_lightning.plugins.environments import SLURMEnvironment

    return [SLURMEnvironment(auto_requeue=False)] if slurm_started() else []


def accelerator_of(wanted: Trainer) -> str:
    if wanted.accelerator == "cuda" and not torch.cuda.is_available():
        raise BadInput("trainer.accelerator is cuda, PyTorch sees no card here, take auto or cpu")
    return "cuda" if wanted.accelerator == "cuda" or (wanted.accelerator == "auto" and torch.cuda.is_available()) else "cpu"


def precision_of(wanted: Trainer, accelerator: str) -> str:
    """`auto` is bf16 only where matrix units compute it: elsewhere it is emulated and slower than fp32."""
    if wanted.precision == "fp16" and accelerator == "cpu":
        raise BadInput("trainer.precision is fp16, it needs CUDA, take bf16 or fp32")
    if wanted.precision != "auto":
        return PRECISIONS[wanted.precision]
    units = torch.cuda.is_bf16_supported() if accelerator == "cuda" else bool(getattr(torch.cpu, "_is_amx_tile_supported", bool)())
    return PRECISIONS["bf16" if units else "fp32"]


def spoken(precision: str | None) -> str:
    """What a recipe calls Lightning's precision."""
    return next(name for name, called in PRECISIONS.items() if called == precision)


def layout_of(wanted: Trainer) -> torch.memory_format:
    """In which order images, weights and features lie in memory."""
    return torch.channels_last if wanted.channels_last else torch.contiguous_format


def processes_of(wanted: Trainer, accelerator: str) -> tuple[int, int]:
    """Processes on each machine, and machines; torchrun says so itself."""
    if os.environ.get("TORCHELASTIC_RUN_ID") and os.environ.get("LOCAL_WORLD_SIZE"):
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        return local, int(os.environ["WORLD_SIZE"]) // local
    everything = torch.cuda.device_count() if accelerator == "cuda" else 1
    devices = wanted.devices or everything
    if accelerator == "cuda" and devices > everything:
        raise BadInput(f"trainer.devices is {devices}, this machine has {everything} cards")
    return devices, wanted.nodes


def lightning_settings(wanted: Trainer) -> dict[str, Any]:
    """Keyword arguments of Lightning's Trainer. Raises BadInput for what this machine has not."""
    from pytorch_lightning.strategies import DDPStrategy

    accelerator = accelerator_of(wanted)
    devices, nodes = processes_of(wanted, accelerator)
    several = DDPStrategy(process_group_backend="gloo" if accelerator == "cpu" else "nccl")
    return {
        "accelerator": accelerator,
        "devices": devices,
        "num_nodes": nodes,
        "strategy": several if devices * nodes > 1 else "auto",
        "precision": precision_of(wanted, accelerator),
        "accumulate_grad_batches": wanted.micro_batches,
        "deterministic": wanted.deterministic,
        "use_distributed_sampler": False,  # the order of images already is shared out
    }
