"""What a profile run is asked for, and what comes out beside its files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path

from nnstretch.errors import BadInput
from nnstretch.graph import Graph
from nnstretch.profile.activity.noise_tally import NoiseTally
from nnstretch.profile.budget import Budget
from nnstretch.profile.sampling.journal import NAME as JOURNAL
from nnstretch.profile.sampling.sample import Sample
from nnstretch.profile.validation import HeldOutNetwork
from nnstretch.soc import Soc

Progress = Callable[[str, float, float], None]
"""What is being done, how far, of how much."""


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """Settings of one profile. Raises BadInput for a budget that is no time."""

    out: Path
    budget_s: float
    processors: str | None = None
    networks: tuple[str, ...] = ()
    """Networks to validate on; none of them is sampled."""
    seed: int = 0
    fresh: bool = False
    """Forget what was measured into the folder before."""
    most: int = 20_000
    """Kernels on one core; more take longer to fit than they tell."""
    targets: tuple[Graph, ...] = ()
    """Networks whose kernels are measured first; the budget is then this run's alone."""
    started_s: float = -1.0
    """When the budget began, by the clock; when the run begins, where it is negative."""

    def __post_init__(self) -> None:
        if not 0 < self.budget_s < inf:
            raise BadInput(f"budget_s is {self.budget_s:g}, profile, needed are seconds above 0")


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """Results of a profile, beside its files."""

    soc: Soc
    samples: dict[int, list[Sample]]
    rows: list[HeldOutNetwork]
    refused: dict[str, str]
    power_w: float | None
    """Mean while kernels were measured; None where the platform has no counter."""
    budget: Budget
    """What each phase took, and what the budget had no time for."""
    noise: NoiseTally
    """Time that other work cost all runs into the folder."""

    @property
    def kernels(self) -> int:
        """Return how many kernels were measured."""
        return sum(map(len, self.samples.values()))


def prepare_folder(out: Path) -> Path:
    """Return the folder, made where its parent is there.

    Raises BadInput where it cannot be written, or holds a chip that no profile measured.
    """
    try:
        out.mkdir(exist_ok=True)
    except FileNotFoundError:
        raise BadInput(f"cannot write {out}, no folder {out.parent}, create it first") from None
    except FileExistsError:
        raise BadInput(f"cannot write {out}, it is a file, name a folder") from None
    except OSError as error:
        raise BadInput(f"cannot write {out}, {error.strerror}") from None
    if (out / "soc.json").exists() and not (out / JOURNAL).exists():
        raise BadInput(
            f"cannot write {out}, its soc.json is of no profile (there is no {JOURNAL}) and would"
            " be replaced, name another folder"
        )
    return out
