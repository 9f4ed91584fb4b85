"""Which operators a backend fuses.

The two-operator test of nn-Meter (MobiSys 2021), on whatever meter is at hand.

Two operators are one kernel where the pair takes much less time than both alone: `T1 + T2 - T12 >
0.5 min(T1, T2)`. A backend whose records count its launches is believed over the clock. A product
or sum with a number (`scale`, `shift`) is tested like any other; a batch norm is always folded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnstretch.errors import BadInput
from nnstretch.kernel import ACTIVATIONS, FusionRules, Kernel
from nnstretch.profile.backends.meter import Meter
from nnstretch.profile.sampling.kernel_spec import CONVOLUTIONS as FOLDED
from nnstretch.profile.sampling.kernel_spec import KernelSpec, Shape, kernel_of_spec

MAP: Shape = (1, 64, 56, 56)
"""Large enough for an activation to cost about as much as the narrow convolution before it."""
CONSTANTS = {"scale": "mul", "shift": "add"}
"""Kind of an operator between a tensor and a number."""
ROUNDS = 15
BATCH = 24


@dataclass(frozen=True, slots=True)
class FusionProbe:
    """What a chain costs: time, and launches where the backend counts them.

    None where it refuses the chain.
    """

    latency_us: float
    launches: int | None


def fused_pairs(
    meter: Meter,
    may_probe: Callable[[int], bool] = lambda chains: True,
    known: frozenset[tuple[str, str]] = frozenset(),
) -> FusionRules:
    """Return which operators the backend fuses; what there is no time to probe only if it is known.

    `may_probe` is asked before so many chains are measured. Raises BadInput where the backend
    cannot even run a convolution.
    """
    blocked = meter.blocked()
    firsts, pairs = dict(first_kernels("blocked" if blocked else "")), list(candidates())
    followers = {(kind, op): follower(op, firsts[kind]) for kind, op in pairs}
    singles = [(k,) for k in (*firsts.values(), *followers.values())]
    alone = time_probes(meter, singles, may_probe)
    first = dict(zip(firsts, alone, strict=False))
    second = dict(zip(followers, alone[len(firsts) :], strict=False))
    chains = [(firsts[kind], followers[kind, op]) for kind, op in pairs]
    both = dict(zip(pairs, time_probes(meter, chains, may_probe), strict=False))
    if first["conv"] is None:
        raise BadInput(
            f"cannot profile {meter.name}, it refuses a 1x1 convolution over"
            f" {'x'.join(map(str, MAP))}"
        )
    probed = second.keys() & both.keys()
    pairs_fused = {pair for pair in probed if is_fused(first[pair[0]], second[pair], both[pair])}
    pairs_fused |= {(kind, "batch_norm") for kind in FOLDED} | (known - probed)
    return FusionRules(
        frozenset(pairs_fused), after_activation(meter, firsts["conv"], pairs_fused), blocked
    )


def is_fused(
    first: FusionProbe | None, second: FusionProbe | None, both: FusionProbe | None
) -> bool:
    """Return whether the backend fuses a pair; an operator that it refuses alone or behind the
    other is not fused.
    """
    if first is None or second is None or both is None:
        return False
    if first.launches is not None and second.launches is not None and both.launches is not None:
        return both.launches < first.launches + second.launches
    return first.latency_us + second.latency_us - both.latency_us > 0.5 * min(
        first.latency_us, second.latency_us
    )


def first_kernels(layout: str) -> Iterator[tuple[str, Kernel]]:
    """Yield one kernel of every kind that something may join, in the layout that the backend
    prefers.
    """
    batch, channels, height, width = MAP
    narrow = (batch, 16, height, width)
    recipes = {
        "conv": KernelSpec("conv", "conv2d", (narrow,), MAP),
        "gconv": KernelSpec("gconv", "conv2d", ((batch, 32, height, width),), MAP, groups=2),
        "dwconv": KernelSpec("dwconv", "conv2d", (MAP,), MAP, 3, 1, channels),
        "linear": KernelSpec("linear", "linear", ((1, 512),), (1, 2048)),
        "add": KernelSpec("add", "add", (MAP, MAP), MAP),
        "mul": KernelSpec("mul", "mul", (MAP, (batch, channels, 1, 1)), MAP),
        "norm": KernelSpec("norm", "batch_norm", (MAP,), MAP),
    }
    for kind, recipe in recipes.items():
        yield kind, kernel_of_spec(recipe, kind, layout=layout if kind in ("add", "norm") else "")


def candidates() -> Iterator[tuple[str, str]]:
    """Yield pairs of a kernel's kind and the operator that might be fused to it."""
    for kind, _ in first_kernels(""):
        yield from ((kind, op) for op in ACTIVATIONS)
        if kind in (*FOLDED, "linear"):
            yield from ((kind, op) for op in ("add", *CONSTANTS))


def follower(op: str, first: Kernel) -> Kernel:
    """Return the kernel of an operator that follows another kernel."""
    out = first.shape_out
    if op in ACTIVATIONS:
        return kernel_of_spec(KernelSpec("activation", op, (out,), out), op)
    kind = CONSTANTS.get(op, op)
    operands = (out,) if op in CONSTANTS else (out, out)
    layout = "blocked" if len(out) == 4 else ""
    return kernel_of_spec(KernelSpec(kind, kind, operands, out), op, layout=layout)


def after_activation(meter: Meter, conv: Kernel, pairs: set[tuple[str, str]]) -> bool:
    """Return whether a sum still joins behind conv + relu."""
    if not {("conv", "relu"), ("conv", "add")} <= pairs:
        return False
    with_relu, total = replace(conv, epilogue=("relu",)), follower("add", conv)
    first, second, both = time_probes(meter, [(with_relu,), (total,), (with_relu, total)])
    return is_fused(first, second, both)


def time_probes(
    meter: Meter,
    chains: Sequence[tuple[Kernel, ...]],
    may_probe: Callable[[int], bool] = lambda chains: True,
) -> list[FusionProbe | None]:
    """Lower quartiles of the rounds; None for what is refused, and fewer where time is up."""
    probes: list[FusionProbe | None] = []
    for at in range(0, len(chains), BATCH):
        batch = chains[at : at + BATCH]
        if at and not may_probe(len(chains) - at):
            break
        for chain, times in zip(batch, meter.measure(batch, ROUNDS), strict=True):
            probes.append(
                FusionProbe(float(np.percentile(times, 25)), meter.launches(chain))
                if times
                else None
            )
    return probes
