"""The schedule carried out on the host: true numbers in memory of exactly the planned layout.

One flat array stands for each buffer, in the host's element size; tensors lie at their planned
addresses, and copies are copies. Filled with rubbish are: slots of tile loops while they are in
use, a result's place before it is written, and a tensor's place after its last read; kept weights
are read from their place. So an overlap, an early free or a forgotten halo shows in the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import torch

from nnstretch.accelerate.chip_graph import ChipGraph
from nnstretch.accelerate.engines.placed_program import PlacedProgram
from nnstretch.accelerate.engines.program import ChipStep, Storage
from nnstretch.accelerate.graph_rewriter import ADDRESSES
from nnstretch.accelerate.torch_call import as_slices, compute_part
from nnstretch.chip.boxes import Box, box_elements, box_shape, relative
from nnstretch.chip.instances import DDR, LOCAL, Region
from nnstretch.errors import Mismatch
from nnstretch.structure.slices.rules import input_boxes

if TYPE_CHECKING:
    Tensors = Mapping[str, torch.Tensor]
    Part = tuple[Box, torch.Tensor]


class Arena:
    """Flat arrays for the buffers of one cluster."""

    def __init__(self, placed: PlacedProgram, cores: int) -> None:
        self.placed = placed
        self.chip = placed.program.chip
        self.scale = {name: cores if name == LOCAL else 1 for name in ("local", "global", "ddr")}
        ends = dict.fromkeys(self.scale, 0)
        for name in placed.program.storages:
            region = placed.region(name)
            ends[region.buffer] = max(ends[region.buffer], region.stop)
        slots = chain.from_iterable(tiling.slots for tiling in placed.tilings.values())
        for region in (*slots, *(kept.region for kept in placed.kept.values())):
            if region.buffer in ends:
                ends[region.buffer] = max(ends[region.buffer], region.stop)
        self.arrays: dict[str, torch.Tensor] = {}
        for name, end in ends.items():
            size = -(-end * self.scale[name] // self.chip.element_bytes) + 1
            self.arrays[name] = torch.full((size,), float("nan"))
        self.dying: dict[int, list[str]] = {}
        """Storages by the last step of their lives, without those of the network's ends."""
        for name, storage in placed.program.storages.items():
            if not storage.fixed:
                self.dying.setdefault(storage.last_step, []).append(name)
        self.draw = torch.Generator().manual_seed(0)
        self.typed: dict[str, torch.Tensor] = {}
        """Whole numbers and truths keep their type, beside the arrays at the same addresses."""

    def view(self, storage: Storage) -> torch.Tensor:
        """Return a storage as a tensor in its buffer's array."""
        shape = box_shape(storage.box)
        if not self.holds_numbers(storage):
            if storage.name not in self.typed:
                dtype = getattr(torch, self.chip.specs[storage.tensor].dtype)
                self.typed[storage.name] = torch.zeros(shape, dtype=dtype)
            return self.typed[storage.name]
        start = self.placed.addresses[storage.name] * self.scale[storage.scope]
        first = start // self.chip.element_bytes
        return self.arrays[storage.scope][first : first + box_elements(storage.box)].view(shape)

    def holds_numbers(self, storage: Storage) -> bool:
        """Return whether a storage lies in the array of the accelerator's type."""
        return "float" in self.chip.specs[storage.tensor].dtype

    def fill_inputs(self, inputs: Tensors) -> None:
        """Write the network's inputs where DDR holds them."""
        for name, tensor in inputs.items():
            self.view(self.placed.program.storages[f"in/{name}"]).copy_(tensor)

    def kept_weights(self, step: ChipStep, weights: Tensors) -> dict[str, dict[str, Part]]:
        """Return by operator the weights that a step reads from the global buffer.

        The first step that reads them writes them there.
        """
        views: dict[str, dict[str, Part]] = {}
        kept = self.placed.kept.get(step.number)
        if kept is None:
            return views
        if step.number == kept.steps[0]:
            self.spoil([kept.region])
        place, end = (at // self.chip.element_bytes for at in (kept.region.start, kept.region.stop))
        for operator in step.operators:
            for name, box in self.chip.weight_boxes(operator, step.boxes[operator]).items():
                whole = weights[name]
                # Of machines that pad weights to whole tiles, some take nothing for a bias.
                if place + box_elements(box) > end or not whole.is_floating_point():
                    continue
                flat = self.arrays[kept.region.buffer][place : place + box_elements(box)]
                view, place = flat.view(box_shape(box)), place + box_elements(box)
                if step.number == kept.steps[0]:
                    view.copy_(whole[as_slices(box)])
                views.setdefault(operator, {})[name] = (box, view)
        return views

    def take(self, step: ChipStep) -> None:
        """Fill the place of a step's result with rubbish, where it does not write over an input."""
        storage = self.placed.program.storages[step.writes]
        if storage.first_step == step.number and not storage.fixed:
            self.spoil([self.placed.region(storage.name)])

    def release(self, step: ChipStep) -> None:
        """Fill the places of tensors that no later step needs with rubbish."""
        dying = [name for name in self.dying.get(step.number, ()) if name != step.writes]
        self.spoil([self.placed.region(name) for name in dying])
        kept = self.placed.kept.get(step.number)
        if kept is not None and step.number == kept.steps[-1]:
            self.spoil([kept.region])

    def spoil(self, regions: Sequence[Region]) -> None:
        """Fill addresses with rubbish."""
        for region in regions:
            if region.buffer in self.arrays:
                scale = self.scale[region.buffer]
                start = region.start * scale // self.chip.element_bytes
                stop = region.stop * scale // self.chip.element_bytes
                self.arrays[region.buffer][start:stop] = float("nan")
        for name, tensor in self.typed.items():
            place = self.placed.region(name)
            if any(overlap(place, region) for region in regions):
                tensor.copy_(torch.rand(tensor.shape, generator=self.draw) < 0.5)


def overlap(first: Region, second: Region) -> bool:
    """Return whether two regions have a byte in common."""
    shared = first.start < second.stop and second.start < first.stop
    return first.buffer == second.buffer and shared


def execute(
    placed: PlacedProgram, cores: int, weights: Tensors, inputs: Tensors
) -> dict[str, torch.Tensor]:
    """Carry out a schedule and return the network's outputs by name."""
    arena = Arena(placed, cores)
    arena.fill_inputs(inputs)
    with torch.no_grad():
        for step in placed.program.steps:
            arena.take(step)
            if step.operators:
                run_layer(arena, step, weights)
            else:
                run_concatenation(arena, step)
            arena.release(step)
    return collect_outputs(arena, weights)


def run_concatenation(arena: Arena, step: ChipStep) -> None:
    """Copy pieces into the storage of their concatenation."""
    target = arena.placed.program.storages[step.writes]
    for reading in step.readings:
        source = arena.placed.program.storages[reading.storage]
        bounds = tuple(
            (max(a, c), min(b, d)) for (a, b), (c, d) in zip(reading.box, target.box, strict=True)
        )
        piece = arena.view(source)[as_slices(relative(bounds, source.box))]
        arena.view(target)[as_slices(relative(bounds, target.box))] = piece.clone()


def run_layer(arena: Arena, step: ChipStep, weights: Tensors) -> None:
    """Compute a layer from what lies in the buffers, and write its result there."""
    storages = arena.placed.program.storages
    tiling = arena.placed.tilings.get(step.number)
    if tiling is not None:
        arena.spoil(tiling.slots)
    kept = arena.kept_weights(step, weights)
    known: dict[str, Part] = {}
    for reading in step.readings:
        storage = storages[reading.storage]
        known[reading.tensor] = (storage.box, arena.view(storage))
    value: torch.Tensor | None = None
    for name in step.operators:
        box = step.boxes[name]
        value = compute_operator(arena.chip, name, box, known | kept.get(name, {}), weights)
        known[name] = (box, value)
    assert value is not None
    arena.view(storages[step.writes]).copy_(value)
    if tiling is not None:
        arena.spoil(tiling.slots)


def compute_operator(
    chip: ChipGraph,
    name: str,
    box: Box,
    known: Mapping[str, Part],
    weights: Tensors,
) -> torch.Tensor:
    """Return a part of an operator's output; views between are followed."""
    node = chip.nodes[name]
    parts: dict[str, torch.Tensor] = {}
    for source, area in input_boxes(node, box, chip.specs).items():
        if box_elements(area):
            parts[source] = part_of(chip, source, area, known, weights)
    return compute_part(node, box, chip.specs, parts)


def part_of(
    chip: ChipGraph,
    name: str,
    box: Box,
    known: Mapping[str, Part],
    weights: Tensors,
) -> torch.Tensor:
    """Return a part of a value: of a weight, of what lies in a buffer, or of a view of it."""
    if name in known:
        outer, tensor = known[name]
        return tensor[as_slices(relative(box, outer))]
    if name in weights:
        return weights[name][as_slices(box)]
    node = chip.nodes[name]
    assert node.kind in ADDRESSES, name
    area, source, behind = chip.view_boxes(node, box)
    parts = {source: part_of(chip, source, behind, known, weights)}
    formed = compute_part(node, area, chip.specs, parts)
    return formed[as_slices(relative(box, area))]


def collect_outputs(arena: Arena, weights: Tensors) -> dict[str, torch.Tensor]:
    """Return the network's outputs from where the schedule left them."""
    chip = arena.chip
    whole_outputs: dict[str, Part] = {}
    for root in chip.outputs:
        spec = chip.specs[root]
        if root in weights:
            continue  # nothing stores what is known before
        result = torch.full(spec.shape, float("nan"))
        for storage in arena.placed.program.storages.values():
            if storage.tensor == root and storage.scope == DDR and "/+" not in storage.name:
                result[as_slices(storage.box)] = arena.view(storage).to(result.dtype)
        whole_outputs[root] = (tuple((0, size) for size in spec.shape), result)
    outputs: dict[str, torch.Tensor] = {}
    for name in chip.graph.outputs:
        box = tuple((0, size) for size in chip.specs[name].shape)
        outputs[name] = part_of(chip, name, box, whole_outputs, weights).clone()
    return outputs


def largest_error(
    outputs: Mapping[str, torch.Tensor], expected: Sequence[torch.Tensor]
) -> tuple[float, float]:
    """Return the largest difference, and that of the largest output.

    NaN or infinity where the other has another number counts as an infinite difference.
    """
    largest = relative_error = 0.0
    for result, expected_output in zip(outputs.values(), expected, strict=True):
        if not result.numel():
            continue
        truth = expected_output.to(result.dtype)
        is_same = (result == truth) | (result.isnan() & truth.isnan())
        differences = (result - truth).abs().nan_to_num(nan=float("inf")).masked_fill(is_same, 0)
        difference = differences.max().item()
        finite = truth[truth.isfinite()]
        scale = (finite.abs().max().item() if finite.numel() else 0.0) or 1.0
        largest, relative_error = max(largest, difference), max(relative_error, difference / scale)
    return largest, relative_error


def check(
    placed: PlacedProgram,
    cores: int,
    weights: Tensors,
    inputs: Tensors,
    expected: Sequence[torch.Tensor],
) -> float:
    """Return the largest difference from the network's outputs.

    Raises Mismatch where it is more than a ten-thousandth of the largest output.
    """
    outputs = execute(placed, cores, weights, inputs)
    names = enumerate(placed.program.chip.graph.outputs)  # one may be there twice
    in_order = {f"{number} {name}": outputs[name] for number, name in names}
    largest, relative_error = largest_error(in_order, expected)
    if not relative_error <= 1e-4:
        raise Mismatch(
            f"the schedule computes other numbers, {placed.program.chip.graph.name}, they differ by"
            f" {largest:.3g}, {relative_error:.3g} of the largest output"
        )
    return largest
