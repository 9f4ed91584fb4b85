"""The signal applications of CEDR's mix as task graphs: their FFT calls, and code between them.

Counts of calls are those of the API versions in UA-RCL/CEDR (96eeda6), applications/APIApps:
pulse Doppler filters 128 pulses one after another (two FFTs side by side, then an inverse one) and
ends with 128 FFTs side by side; WiFi-TX makes 10 frames, each of which ends in 10 inverse FFTs side
by side. What else they compute runs on a CPU, and nobody published its time: every FFT call is taken
to come with the same amount of such code, `code_us`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from published import FFT_US

PULSES, FRAMES, SYMBOLS = 128, 10, 10
Costs = dict[str, dict[str, float]]


@dataclass
class GraphTable:
    """A task graph while it is written: tasks, what they need, costs by type in us."""

    tasks: list[str] = field(default_factory=list)
    needs: list[tuple[str, str]] = field(default_factory=list)
    costs: Costs = field(default_factory=dict)

    def add(self, name: str, needs: list[str], costs_us: dict[str, float]) -> str:
        """Add a task and return its name."""
        self.tasks.append(name)
        self.needs += [(need, name) for need in needs]
        self.costs[name] = {kind: round(cost_us, 3) for kind, cost_us in costs_us.items()}
        return name


def pulse_doppler(code_us: float) -> GraphTable:
    """Return pulse Doppler with so much code per FFT call."""
    graph, before = GraphTable(), list[str]()
    for pulse in range(PULSES):
        start = graph.add(f"read{pulse}", before, {"cpu": 2 * code_us})
        pair = [graph.add(f"fft{pulse}_{side}", [start], FFT_US) for side in "ab"]
        product = graph.add(f"multiply{pulse}", pair, {"cpu": code_us})
        before = [graph.add(f"ifft{pulse}", [product], FFT_US)]
    start = graph.add("turn", before, {"cpu": PULSES * code_us})
    for pulse in range(PULSES):
        graph.add(f"doppler{pulse}", [start], FFT_US)
    return graph


def wifi_tx(code_us: float) -> GraphTable:
    """Return WiFi-TX with so much code per FFT call."""
    graph, before = GraphTable(), list[str]()
    for frame in range(FRAMES):
        start = graph.add(f"encode{frame}", before, {"cpu": SYMBOLS * code_us})
        before = [graph.add(f"ifft{frame}_{s}", [start], FFT_US) for s in range(SYMBOLS)]
    return graph
