"""Accelerator, processes and precision of a recipe on this machine, as Lightning's settings."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from nnstretch.errors import BadInput
from nnstretch.train.recipe import TrainerSettings

LIGHTNING_PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def process_rank(settings: TrainerSettings) -> int:
    """Return the rank of this process, before Lightning has begun; 0 prints and writes for all."""
    # A cluster may number processes that have nothing to do with each other.
    if resolve_process_counts(settings, resolve_accelerator(settings)) == (1, 1):
        return 0
    rank = environment_number("RANK")
    # In a job without srun, all processes that Lightning starts inherit the first one's number.
    if rank is None and is_started_by_slurm():
        rank = environment_number("SLURM_PROCID")
    if rank is not None:
        return rank
    return (environment_number("NODE_RANK") or 0) + (environment_number("LOCAL_RANK") or 0)


def environment_number(name: str) -> int | None:
    """Return a whole number of the environment; None where there is none."""
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else None


def is_started_by_slurm() -> bool:
    """Return whether `srun` started this process, and not torchrun under it."""
    from pytorch_lightning.plugins.environments import SLURMEnvironment, TorchElasticEnvironment  # type: ignore[attr-defined]

    return SLURMEnvironment.detect() and not TorchElasticEnvironment.detect()


def cluster_environments() -> list[Any]:
    """Return SLURM's plug-in without requeueing, which would save outside of the run's folder."""
    from pytorch_lightning.plugins.environments import SLURMEnvironment  # type: ignore[attr-defined]

    return [SLURMEnvironment(auto_requeue=False)] if is_started_by_slurm() else []


def resolve_accelerator(settings: TrainerSettings) -> str:
    """Return `cuda` or `cpu`. Raises BadInput when CUDA is asked for and missing."""
    available = torch.cuda.is_available()
    if settings.accelerator == "cuda" and not available:
        raise BadInput("trainer.accelerator is cuda, PyTorch sees no card here, take auto or cpu")
    return "cuda" if available and settings.accelerator != "cpu" else "cpu"


def resolve_precision(settings: TrainerSettings, accelerator: str) -> str:
    """Return Lightning's precision. Raises BadInput when fp16 is asked for without CUDA."""
    if settings.precision == "fp16" and accelerator == "cpu":
        raise BadInput("trainer.precision is fp16, it needs CUDA, take bf16 or fp32")
    if settings.precision != "auto":
        return LIGHTNING_PRECISIONS[settings.precision]
    return LIGHTNING_PRECISIONS["bf16" if has_bf16_units(accelerator) else "fp32"]


def has_bf16_units(accelerator: str) -> bool:
    """Return whether matrix units compute bf16, which elsewhere is emulated and slow."""
    if accelerator == "cuda":
        return torch.cuda.is_bf16_supported()
    return bool(getattr(torch.cpu, "_is_amx_tile_supported", bool)())


def precision_name(precision: str | None) -> str:
    """Return the recipe's name of Lightning's precision."""
    return next(name for name, value in LIGHTNING_PRECISIONS.items() if value == precision)


def tensor_memory_format(settings: TrainerSettings, network: nn.Module) -> torch.memory_format:
    """Return the order in which a network's images, weights and features lie in memory."""
    if not settings.channels_last:
        return torch.contiguous_format
    if resolve_accelerator(settings) == "cpu" and any(
        is_unsafe_channels_last(module) for module in network.modules()
    ):
        return torch.contiguous_format
    return torch.channels_last


def is_unsafe_channels_last(module: nn.Module) -> bool:
    """Return whether a layer's gradients on a CPU may be written outside of their memory in NHWC.

    PyTorch 2.14 does so, on CPUs with AVX2 alone, for strided 1x1 convolutions of few channels:
    shortcuts of narrow branches.
    """
    if not isinstance(module, nn.Conv2d) or module.groups > 1:
        return False
    return module.kernel_size == (1, 1) and max(module.stride) > 1 and module.in_channels < 8


def resolve_process_counts(settings: TrainerSettings, accelerator: str) -> tuple[int, int]:
    """Return processes on each machine, and machines, as torchrun started them or as asked for.

    Raises BadInput when the machine has fewer cards.
    """
    if os.environ.get("TORCHELASTIC_RUN_ID") and os.environ.get("LOCAL_WORLD_SIZE"):
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        return local, int(os.environ["WORLD_SIZE"]) // local
    available = torch.cuda.device_count() if accelerator == "cuda" else 1
    devices = settings.devices or available
    if accelerator == "cuda" and devices > available:
        raise BadInput(f"trainer.devices is {devices}, this machine has {available} cards")
    return devices, settings.nodes


def lightning_settings(settings: TrainerSettings) -> dict[str, Any]:
    """Return arguments of Lightning's Trainer. Raises BadInput for what this machine lacks."""
    from pytorch_lightning.strategies import DDPStrategy

    accelerator = resolve_accelerator(settings)
    devices, nodes = resolve_process_counts(settings, accelerator)
    parallel = DDPStrategy(process_group_backend="gloo" if accelerator == "cpu" else "nccl")
    return {
        "accelerator": accelerator,
        "devices": devices,
        "num_nodes": nodes,
        "strategy": parallel if devices * nodes > 1 else "auto",
        "precision": resolve_precision(settings, accelerator),
        "accumulate_grad_batches": settings.micro_batches,
        "deterministic": settings.deterministic,
        # The order of images is shared out already.
        "use_distributed_sampler": False,
    }
