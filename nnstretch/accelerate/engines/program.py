"""Program: layers and concatenations in order, and the storage that each reads and writes.

A storage is a part of a tensor in one place: what an instance computes of an operator, what it
concatenates, or an input of the network. Element-wise results take over the storage of an input
that dies there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nnstretch.accelerate.chip_graph import IN_PLACE, ChipGraph, whole_box
from nnstretch.accelerate.steps.binding import BoundInstance, plain_binding
from nnstretch.accelerate.steps.layers import layers_of
from nnstretch.accelerate.steps.movement import Concatenation, concatenations, sources_of
from nnstretch.accelerate.steps.slicing import Writers
from nnstretch.chip.boxes import Box, box_elements, hull, intersect
from nnstretch.chip.instances import DDR, Binding, Group, Instance


@dataclass(frozen=True, slots=True)
class Storage:
    """A part of a tensor in one place, from its first write to its last read."""

    name: str
    tensor: str
    box: Box
    size_bytes: int
    binding: Binding
    scope: str
    first_step: int
    last_step: int
    fixed: bool = False
    """Whether its scope is not to choose: inputs and outputs of the network."""

    @property
    def span(self) -> int:
        """Return the steps over which it lives."""
        return self.last_step - self.first_step + 1


@dataclass(frozen=True, slots=True)
class Reading:
    """A part of a storage that an operator reads."""

    storage: str
    tensor: str
    box: Box


@dataclass(frozen=True, slots=True)
class ChipStep:
    """One layer of one instance, or one concatenation before an instance."""

    number: int
    kernel: int
    instance: str
    operators: tuple[str, ...]
    """Empty for a concatenation."""
    readings: tuple[Reading, ...]
    """Each storage that the step reads, in order; what the layer computes itself is no reading."""
    writes: str
    """The storage of its result."""
    boxes: Mapping[str, Box]
    """What it computes of each operator."""

    @property
    def name(self) -> str:
        """Return the printed name: `g0.3/conv2d_1`."""
        return self.writes if self.operators == () else f"{self.instance}/{self.operators[-1]}"


@dataclass(frozen=True)
class Program:
    """Steps in order and every storage by name."""

    chip: ChipGraph
    steps: tuple[ChipStep, ...]
    storages: Mapping[str, Storage]


def build_program(
    chip: ChipGraph,
    groups: Sequence[Group],
    order: Sequence[Instance],
    bound: Mapping[str, BoundInstance],
    inner_scope: str,
    cores: int,
) -> Program:
    """Return the program of instances in order.

    `inner_scope` is where tensors inside an instance lie; what leaves one has its own scope.
    """
    builder = ProgramBuilder(chip, Writers(order), bound, inner_scope, cores)
    before = concatenations(order)
    for kernel, instance in enumerate(order):
        for concatenation in before[instance.name]:
            builder.add_concatenation(kernel, concatenation)
        for layer in layers_of(chip, list(instance.boxes)):
            builder.add_layer(kernel, instance, layer)
    return builder.finish()


class ProgramBuilder:
    """Builder of a program, step by step."""

    def __init__(
        self,
        chip: ChipGraph,
        writers: Writers,
        bound: Mapping[str, BoundInstance],
        inner_scope: str,
        cores: int,
    ) -> None:
        self.chip = chip
        self.writers = writers
        self.bound = bound
        self.inner_scope = inner_scope
        self.cores = cores
        self.steps: list[ChipStep] = []
        self.storages: dict[str, Storage] = {}
        self.place: dict[tuple[str, str], str] = {}
        """Storage by (instance, tensor)."""
        for value in chip.graph.inputs:
            box = whole_box(chip, value.name)
            self.store(f"in/{value.name}", value.name, box, DDR, fixed=True)
            self.place["in", value.name] = f"in/{value.name}"

    def store(self, name: str, tensor: str, box: Box, scope: str, fixed: bool = False) -> Storage:
        """Add a storage that the next step writes."""
        binding = plain_binding(self.chip, tensor, box, self.cores)
        step = len(self.steps)
        size_bytes = self.chip.bytes_of(tensor, box)
        storage = Storage(name, tensor, box, size_bytes, binding, scope, step, step, fixed)
        self.storages[name] = storage
        return storage

    def add_concatenation(self, kernel: int, concatenation: Concatenation) -> None:
        """Add a step that makes pieces one for a reader."""
        tensor, box = concatenation.tensor, concatenation.box
        readings: list[Reading] = []
        for piece in concatenation.pieces:
            storage = self.place[piece.writer, piece.tensor]
            needed = intersect(piece.box, box)
            assert needed is not None, "pieces overlap what is read"
            readings.append(self.read(storage, tensor, needed))
        name = f"{concatenation.reader}/+{tensor}"
        self.store(name, tensor, box, self.inner_scope)
        self.place[concatenation.reader, tensor] = name
        step = ChipStep(
            len(self.steps), kernel, concatenation.reader, (), tuple(readings), name, {tensor: box}
        )
        self.steps.append(step)

    def read(self, storage: str, tensor: str, box: Box) -> Reading:
        """Note that the next step reads a storage."""
        self.storages[storage] = replace(self.storages[storage], last_step=len(self.steps))
        return Reading(storage, tensor, box)

    def add_layer(self, kernel: int, instance: Instance, layer: tuple[str, ...]) -> None:
        """Add a step that computes a layer of an instance."""
        readings: dict[str, Reading] = {}
        for name in layer:
            for tensor, box in self.chip.read_boxes(name, instance.boxes[name]).items():
                if tensor in self.chip.weights or tensor in layer or not box_elements(box):
                    continue
                storage = self.storage_read(instance, tensor, box)
                if storage in readings:
                    box = hull(readings[storage].box, box)
                readings[storage] = self.read(storage, tensor, box)
        writes = self.result_storage(instance, layer, readings)
        self.place[instance.name, layer[-1]] = writes
        boxes = {name: instance.boxes[name] for name in layer}
        number = len(self.steps)
        self.steps.append(
            ChipStep(number, kernel, instance.name, layer, tuple(readings.values()), writes, boxes)
        )

    def storage_read(self, instance: Instance, tensor: str, box: Box) -> str:
        """Return the storage from which an instance reads a part of a tensor."""
        for writer in (instance.name, "in"):
            if (writer, tensor) in self.place:
                return self.place[writer, tensor]
        piece = sources_of(tensor, box, self.writers)[0]
        return self.place[piece.writer, tensor]

    def result_storage(
        self, instance: Instance, layer: tuple[str, ...], readings: Mapping[str, Reading]
    ) -> str:
        """Return the storage of a layer's result: that of a dying input, else a new one."""
        tensor = layer[-1]
        box = instance.boxes[tensor]
        name = f"{instance.name}/{tensor}"
        leaves = tensor in instance.writes
        if tensor in self.chip.outputs:
            self.store(name, tensor, box, DDR, fixed=True)
            return name
        replaced = None if leaves else self.overwritten(instance, layer, readings)
        if replaced is not None:
            old = self.storages[replaced]
            self.storages[replaced] = replace(old, last_step=len(self.steps))
            return replaced
        bound = self.bound[instance.name]
        self.store(name, tensor, box, bound.scope if leaves else self.inner_scope)
        if leaves and len(bound.binding.axes) == len(box):
            self.storages[name] = replace(self.storages[name], binding=bound.binding)
        return name

    def overwritten(
        self, instance: Instance, layer: tuple[str, ...], readings: Mapping[str, Reading]
    ) -> str | None:
        """Return the storage of the instance over which an element-wise layer may write."""
        if any(self.chip.nodes[name].kind not in IN_PLACE for name in layer):
            return None
        first = self.chip.nodes[layer[0]]
        last_place = {name: place for place, name in enumerate(instance.boxes)}
        for name in first.inputs:
            storage = self.place.get((instance.name, name))
            if storage is None or storage not in readings or name in instance.writes:
                continue
            whole_storage = self.storages[storage].box == instance.boxes[layer[-1]]
            same = self.chip.same_elements(name, layer[0])
            same = same and self.chip.same_elements(name, layer[-1])
            users = self.chip.readers.get(name, ())
            dies = all(last_place.get(user, -1) <= last_place[layer[-1]] for user in users)
            owner = storage.partition("/")[0] == instance.name and "/+" not in storage
            if (
                owner
                and whole_storage
                and same
                and dies
                and all(u in instance.boxes for u in users)
            ):
                return storage
        return None

    def finish(self) -> Program:
        """Return the program; what leaves the network lives to the end."""
        last = len(self.steps) - 1
        for name, storage in self.storages.items():
            if storage.fixed:
                self.storages[name] = replace(storage, first_step=0, last_step=last)
        return Program(self.chip, tuple(self.steps), self.storages)
