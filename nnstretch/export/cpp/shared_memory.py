"""Which tensors may share memory, and how small no arena can be."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

UNLIMITED = 1 << 62


def tensors_before(users: Sequence[Sequence[int]], ancestors: Sequence[int]) -> list[int]:
    """Return for each tensor those, as bits, that are wholly used before its first use starts.

    `users` are the numbers of the calls on each tensor, `ancestors` the calls before each call.
    """
    masks: list[int] = []
    for numbers in users:
        masks.append(sum(1 << number for number in numbers))
    before: list[int] = []
    for numbers in users:
        common = ancestors[numbers[0]]
        for number in numbers[1:]:
            common &= ancestors[number]
        before.append(sum(1 << i for i, mask in enumerate(masks) if mask & common == mask))
    return before


def least_memory(sizes: Sequence[int], before: Sequence[int]) -> int:
    """Return the largest sum of tensors of which no two may share memory.

    No arena with fixed offsets is smaller, whatever runs at once. The order of tensors is partial
    and transitive, so that sum is what a largest flow through its chains leaves (the weighted form
    of Dilworth's theorem). Tensors come in the order of their first use.
    """
    flow = FlowNetwork(2 * len(sizes) + 2)
    source, sink = 2 * len(sizes), 2 * len(sizes) + 1
    for index, size in enumerate(sizes):
        start, end = 2 * index, 2 * index + 1
        flow.connect(source, start, size)
        flow.connect(end, sink, size)
        # What reaches the end of a tensor goes on from its start: chains of any length.
        flow.connect(end, start, UNLIMITED)
        for previous in covers(before, index):
            flow.connect(2 * previous, end, UNLIMITED)
    return sum(sizes) - flow.largest(source, sink)


def covers(before: Sequence[int], index: int) -> list[int]:
    """Return the direct predecessors of a tensor: no third one lies between."""
    direct: list[int] = []
    remaining = before[index]
    while remaining:
        last = remaining.bit_length() - 1
        direct.append(last)
        remaining &= ~(before[last] | 1 << last)
    return direct


@dataclass
class FlowNetwork:
    """Nodes with edges of limited capacity (Dinic, 1970)."""

    nodes: int
    targets: list[int] = field(default_factory=list)
    capacities: list[int] = field(default_factory=list)
    """Of an edge and, right behind it, of its reverse."""
    edges: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.edges = [[] for _ in range(self.nodes)]

    def connect(self, start: int, end: int, capacity: int) -> None:
        """Add an edge."""
        for node, target, size in ((start, end, capacity), (end, start, 0)):
            self.edges[node].append(len(self.targets))
            self.targets.append(target)
            self.capacities.append(size)

    def largest(self, source: int, sink: int) -> int:
        """Send as much as fits; return how much that is."""
        total = 0
        while True:
            levels = self.levels(source)
            if levels[sink] < 0:
                return total
            total += self.send(source, sink, levels)

    def levels(self, source: int) -> list[int]:
        """Return how many edges with room lie between the source and each node, or -1."""
        levels = [-1] * self.nodes
        levels[source] = 0
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for edge in self.edges[node]:
                target = self.targets[edge]
                if self.capacities[edge] > 0 and levels[target] < 0:
                    levels[target] = levels[node] + 1
                    queue.append(target)
        return levels

    def send(self, source: int, sink: int, levels: Sequence[int]) -> int:
        """Send along shortest paths until none has room; return how much that was."""
        nexts = [0] * self.nodes
        total = 0
        path: list[int] = []
        node = source
        while True:
            if node == sink:
                amount = min(self.capacities[edge] for edge in path)
                for edge in path:
                    self.capacities[edge] -= amount
                    self.capacities[edge ^ 1] += amount
                total += amount
                path, node = [], source
            elif nexts[node] < len(self.edges[node]):
                edge = self.edges[node][nexts[node]]
                target = self.targets[edge]
                if self.capacities[edge] > 0 and levels[target] == levels[node] + 1:
                    path.append(edge)
                    node = target
                else:
                    nexts[node] += 1
            elif path:
                node = self.targets[path.pop() ^ 1]
                nexts[node] += 1
            else:
                return total
