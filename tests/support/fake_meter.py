"""A backend whose latencies are known, so that what a profile finds can be checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nnstretch.kernel import ChannelBlockedLayout, FusionRules, Kernel


def law_us(kernel: Kernel) -> float:
    """Launch, arithmetic, traffic."""
    moved = kernel.read_elements + kernel.write_elements + kernel.weight_elements
    return 2 + kernel.macs / 20_000 + moved / 4_000


@dataclass
class FakeMeter:
    """Fuses what it is told to; is disturbed in the calls that it is told."""

    fuses: frozenset[tuple[str, str]] = frozenset()
    counts: bool = False
    disturbed: frozenset[int] = frozenset()
    refuses: frozenset[str] = frozenset()
    name: str = "fake"
    dtype: str = "float32"
    version: str = "fake 1"
    rules: FusionRules | None = None
    call_us: float = 5.0
    calls: int = 0
    seen: list[Kernel] = field(default_factory=list)

    def blocked(self) -> ChannelBlockedLayout | None:
        return None

    def joined(self, chain: tuple[Kernel, ...]) -> list[Kernel]:
        """What launches: a follower that joins adds nothing."""
        kept = [chain[0]]
        for kernel in chain[1:]:
            if (kept[-1].kind, kernel.op) not in self.fuses or kept[-1].epilogue:
                kept.append(kernel)
        return kept

    def launches(self, chain: tuple[Kernel, ...], /) -> int | None:
        return len(self.joined(chain)) if self.counts else None

    def measure(
        self, chains: Sequence[tuple[Kernel, ...]], rounds: int, /
    ) -> list[tuple[float, ...]]:
        slow = 1.5 if self.calls in self.disturbed else 1.0
        self.calls += 1
        self.seen += [kernel for chain in chains for kernel in chain]
        return [
            (
                ()
                if any(k.kind in self.refuses for k in chain)
                else (slow * sum(map(law_us, self.joined(chain))),) * rounds
            )
            for chain in chains
        ]

    def network(self, module: Any, example: Any, /) -> Callable[[], None]:
        return lambda: None
