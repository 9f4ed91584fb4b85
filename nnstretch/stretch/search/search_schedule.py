"""How much effort the exact search spends, and in which order."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from nnstretch.stretch.search.constraints import NetworkLimits


@dataclass(frozen=True, slots=True)
class BeamLimits:
    """What a label search may keep before it drops labels without proof."""

    labels: int
    """Labels at one cut."""
    combinations: int
    """Branch combinations of one segment option and input width."""


NARROW = BeamLimits(60, 24)
MEDIUM = BeamLimits(300, 100)
WIDE = BeamLimits(3_000, 600)
WIDEST = BeamLimits(30_000, 4_000)
LAST = BeamLimits(200_000, 4_000)


@dataclass(frozen=True, slots=True)
class LabelRun:
    """One label search of a phase."""

    beam: BeamLimits
    margin: float
    """Plans are looked for up to this share above the lower bound."""


@dataclass(frozen=True, slots=True)
class BinFactors:
    """Factors that a bin of merged widths may span; finer bins give tighter bounds."""

    first: float
    """At the first multipliers."""
    trials: float
    """At further multipliers, and for alternatives."""
    phases: tuple[float | None, ...]
    """At the start of each phase, the bounds at the best multipliers again; None keeps them."""


@dataclass(frozen=True, slots=True)
class SearchSchedule:
    """Settings of the exact search; none changes what is proven, only how fast."""

    unlimited_bins: BinFactors = BinFactors(1.05, 1.15, (None, 1.015, 1.0))
    """Bins where nothing limits the whole network."""
    pair_bins: BinFactors = BinFactors(1.1, 1.15, (1.015, 1.0, 1.0))
    """The same on two processors, where finer bins of the options that are left often prove it."""
    limited_bins: BinFactors = BinFactors(1.1, 1.03, (None, 1.015, 1.0))
    """Bins where work has a multiplier: no width has the least latency and most work of a bin."""
    limited_pair_bins: BinFactors = BinFactors(1.03, 1.03, (None, 1.015, 1.0))
    """The same on two processors."""
    exact_bins: BinFactors = BinFactors(1.0, 1.0, (None, 1.0, 1.0))
    """Bins under a limit on the most MACs, where work may not be overstated."""
    phases: tuple[tuple[LabelRun, ...], ...] = (
        (LabelRun(NARROW, 0.04),),
        (
            LabelRun(NARROW, 0.04),
            LabelRun(WIDE, 0.04),
            LabelRun(WIDE, 0.2),
        ),
        (LabelRun(WIDE, 0.2), LabelRun(WIDEST, 0.5), LabelRun(LAST, math.inf)),
    )
    """Label searches of each phase; the next one runs where the one before proved too little."""
    unlimited_phases: tuple[tuple[LabelRun, ...], ...] = (
        (),
        (LabelRun(NARROW, 0.04),),
        (
            LabelRun(NARROW, 0.04),
            LabelRun(MEDIUM, 0.04),
            LabelRun(WIDE, 0.04),
            LabelRun(WIDE, 0.2),
            LabelRun(WIDEST, 0.5),
            LabelRun(LAST, math.inf),
        ),
    )
    """The same where nothing limits the whole network: the finest bins before wide beams."""
    surrounded_labels: int = WIDE.labels
    """Labels of a beam from which on bounds at multipliers around the best pay."""
    largest_step: float = 0.15
    """Multipliers change from one round to the next by this share of the largest at most."""
    smallest_step: float = 0.02
    """Multipliers this close to tried ones, as a share of the largest, promise nothing new."""
    bound_tolerance: float = 0.002
    """Multipliers are good enough when others could lift the bound by this share at most."""
    kept_bounds: int = 5
    """Multipliers whose bounds prune labels."""
    greedy_beam: BeamLimits = NARROW
    """Beam of the local search around a greedy plan, and of alternatives."""
    polishing_beam: BeamLimits = MEDIUM
    """Beam of the local search at the start of a phase."""
    polished_options: int = 20
    """Options, beside those of greedy plans, of the local search at the start of a phase."""
    margins: tuple[float, ...] = (0.03, 0.1, 0.3, math.inf)
    """Shares above the bound up to which a local search looks for plans, in order."""
    greedy_margins: int = 2
    """Margins of a local search around a greedy plan once there is an incumbent."""
    greedy_slacks: tuple[float, ...] = (0.002, 0.005, 0.01, 0.02, 0.05, 0.2, math.inf)
    """Shares above its bound up to which the best combination of an option is looked for."""
    greedy_options: int = 6
    """Options that a greedy step tries."""
    greedy_combinations: int = 4_000
    """Combinations that a greedy step looks at."""

    def first_phase(self) -> SearchSchedule:
        """Return the settings of a search that ends after its first phase."""
        return replace(self, phases=self.phases[:1], unlimited_phases=self.unlimited_phases[:1])

    def label_runs(self, limits: NetworkLimits) -> tuple[tuple[LabelRun, ...], ...]:
        """Return the label searches of each phase under limits of the whole network."""
        return self.phases if limits.any else self.unlimited_phases

    def bins(self, limits: NetworkLimits, processors: int) -> BinFactors:
        """Return the bin factors under limits of the whole network, for so many processors."""
        if limits.max_macs < math.inf:
            return self.exact_bins
        if limits.any:
            return self.limited_pair_bins if processors <= 2 else self.limited_bins
        return self.pair_bins if processors <= 2 else self.unlimited_bins
