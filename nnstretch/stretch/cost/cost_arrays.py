"""What units and adapters cost at many widths at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nnstretch.graph import Graph, TensorSpec, Value
from nnstretch.kernel import FusionRules, Kernel
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.cost.polynomials import Array, KernelPolynomials, fit_polynomials
from nnstretch.stretch.lowering.adapters import build_adapter
from nnstretch.structure.kernel_fusion import fuse_kernels
from nnstretch.structure.layout_conversion import BLOCKED, PLAIN


@dataclass(frozen=True)
class CostArrays:
    """Arrays of one shape: microseconds on every processor, MACs, parameters.

    Infinite where no such unit can be built.
    """

    latency_us: Mapping[str, Array]
    macs: Array
    params: Array


@dataclass(frozen=True)
class TailCosts:
    """One segment without its first unit: arrays over (depth, width of the branch)."""

    depths: Array
    widths: Array
    first: Array
    """Index of each width's first unit among the columns of the front."""
    us: Mapping[str, Array]
    macs: Array
    params: Array


@dataclass(frozen=True)
class HeadCosts:
    """The first unit of every segment that starts at one cut.

    Arrays over (width it reads, width it writes).
    """

    widths_in: Array
    widths_out: Array
    costs: CostArrays

    def row(self, width_in: int) -> int:
        """Return the row of an incoming width."""
        return int(np.searchsorted(self.widths_in, width_in))


@dataclass(frozen=True, slots=True)
class BoundaryLayouts:
    """How tensors come and go where runtimes keep maps in blocks of channels.

    A flag for every set of fusion rules.
    """

    blocked: tuple[bool, ...] = ()
    """Which keep what is read in blocks; none where empty."""
    leave: bool = False
    """Whether what is written stays in the layout it has."""

    def kernels(self, graph: Graph, rules: Sequence[FusionRules]) -> tuple[tuple[Kernel, ...], ...]:
        """Return the kernels under every set of rules."""
        flags = self.blocked or (False,) * len(rules)
        return tuple(
            fuse_kernels(graph, r, BLOCKED if b and r.blocked else PLAIN, self.leave)
            for r, b in zip(rules, flags, strict=True)
        )


OUTSIDE = BoundaryLayouts()


def boundary_layouts(
    rules: Sequence[FusionRules], blocked: Sequence[bool] = (), leave: bool = False
) -> BoundaryLayouts:
    """Return the layouts at both ends.

    All are alike where no runtime works on blocks of channels.
    """
    flags = tuple(
        b and bool(r.blocked) for r, b in zip(rules, blocked or (False,) * len(rules), strict=True)
    )
    return (
        BoundaryLayouts(flags if any(flags) else (), leave)
        if any(r.blocked for r in rules)
        else OUTSIDE
    )


def layout_rules(cost_model: CostModel, processors: Sequence[str]) -> tuple[FusionRules, ...]:
    """Return the fusion rules of the processors, each once."""
    return tuple(dict.fromkeys(cost_model.soc.rules(p) for p in processors))


def add_costs(first: CostArrays, two: CostArrays) -> CostArrays:
    """Return the sum of two costs."""
    us = {p: first.latency_us[p] + two.latency_us[p] for p in first.latency_us}
    return CostArrays(us, first.macs + two.macs, first.params + two.params)


def select_costs(where: Array, first: CostArrays, two: CostArrays) -> CostArrays:
    """Return the first cost where the mask holds, else the second."""
    us = {p: np.where(where, first.latency_us[p], two.latency_us[p]) for p in first.latency_us}
    return CostArrays(us, first.macs, first.params)


@dataclass
class AdapterCosts:
    """The 1x1 convolution and batch norm that give a tensor other channels.

    A linear layer for tokens.
    """

    axis: int
    spec: TensorSpec
    cost_model: CostModel
    processors: tuple[str, ...]
    forms: dict[tuple[int, int, BoundaryLayouts], KernelPolynomials | None] = field(
        default_factory=dict
    )

    def costs(
        self,
        width_in: Array,
        width_out: Array,
        always: bool = False,
        ends: BoundaryLayouts = OUTSIDE,
    ) -> CostArrays:
        """Return the costs of the adapter, nothing where both widths agree, unless there is
        `always` one.
        """
        width_in, width_out = np.broadcast_arrays(width_in, width_out)
        needed = np.full(width_in.shape, True) if always else width_in != width_out
        rules = layout_rules(self.cost_model, self.processors)
        result = CostArrays(
            {p: np.zeros(width_in.shape) for p in self.processors},
            np.zeros(width_in.shape),
            np.zeros(width_in.shape),
        )
        classes = (
            (width_in % 16) * 16 + width_out % 16
            if any(r.blocked for r in rules)
            else np.zeros_like(width_in)
        )
        for index in np.unique(classes[needed]).tolist():
            rows = (classes == index) & needed
            key = (int(width_in[rows][0]) % 16, int(width_out[rows][0]) % 16)
            form = self.form(key, rules, ends)
            steps = form.steps([width_in[rows], width_out[rows]])
            for p in self.processors:
                kernels = form.kernels[rules.index(self.cost_model.soc.rules(p))]
                result.latency_us[p][rows] = sum(
                    self.cost_model.estimate_grid(k, {n: q.at(steps) for n, q in c.items()}, p)
                    for k, c in kernels
                )
            result.macs[rows], result.params[rows] = form.macs.at(steps), form.params.at(steps)
        return result

    def form(
        self, key: tuple[int, int], rules: tuple[FusionRules, ...], ends: BoundaryLayouts
    ) -> KernelPolynomials:
        """Return the kernel polynomials of a key, fitted once."""

        def lowered(point: tuple[int, ...]) -> tuple[Graph, tuple[tuple[Kernel, ...], ...]]:
            shape = tuple(point[0] if i == self.axis else d for i, d in enumerate(self.spec.shape))
            entry = TensorSpec(shape, self.spec.dtype)
            nodes, weights = build_adapter("x", "x", entry, point[1], self.axis)
            graph = Graph("", (Value("x", entry),), tuple(weights), tuple(nodes), (nodes[-1].name,))
            return graph, ends.kernels(graph, rules)

        if (*key, ends) not in self.forms:
            self.forms[*key, ends] = fit_polynomials(lowered, (64 + key[0], 256 + key[1]), (16, 16))
        form = self.forms[*key, ends]
        assert form is not None, "a 1x1 convolution is no quadratic polynomial"
        return form
