"""What a rule of shapes sees of an ONNX node, and how axes and sides are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest

from nnstretch.bundle.model_files.onnx_file import OnnxAttribute, OnnxNode

Shape = tuple[int, ...]
MAX_WINDOW = 1 << 16
"""Of a kernel, a stride, a dilation or a pad."""
NO_ATTRIBUTE = OnnxAttribute()


@dataclass(frozen=True, slots=True)
class RuleContext:
    """A node with what is known of its inputs."""

    node: OnnxNode
    shapes: tuple[Shape | None, ...]
    """None for an input that was left out, or whose shape is not known."""
    numbers: tuple[Shape | None, ...]
    """Values of inputs that are few integers and known."""
    opset: int

    def shape(self, index: int) -> Shape | None:
        """Return an input's shape where it is known."""
        return self.shapes[index] if index < len(self.shapes) else None

    def known_numbers(self, index: int) -> Shape | None:
        """Return an input's integers where they are known."""
        return self.numbers[index] if index < len(self.numbers) else None

    def given(self, index: int) -> bool:
        """Return whether an input is present."""
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def integers(self, name: str, default: Shape = ()) -> Shape:
        """Return an attribute's numbers."""
        return self.node.attributes[name].integers if name in self.node.attributes else default

    def integer(self, name: str, default: int) -> int:
        """Return an attribute's number."""
        return (self.integers(name) or (default,))[0]

    def text(self, name: str) -> str:
        """Return an attribute's text."""
        return self.node.attributes.get(name, NO_ATTRIBUTE).text

    def axis(self, rank: int, default: int, most: int | None = None) -> int:
        """Return the attribute `axis`, counted from the front. Raises ValueError out of range."""
        return front_axis(self.integer("axis", default), rank, most)

    def settings(self, name: str, index: int) -> Shape | None:
        """Return numbers that older operators have as an attribute and newer ones as an input."""
        if name in self.node.attributes:
            return self.integers(name)
        return self.known_numbers(index)


Shapes = tuple[Shape | None, ...]
Rule = Callable[[RuleContext], Shapes]


def front_axis(axis: int, rank: int, most: int | None = None) -> int:
    """Return an axis counted from the front. Raises ValueError where there is none."""
    limit = rank - 1 if most is None else most
    if not -rank <= axis <= limit:
        raise ValueError(f"axis {axis} of a tensor of {rank} axes")
    return axis + rank if axis < 0 else axis


def broadcast(shapes: tuple[Shape, ...]) -> Shape:
    """Return what tensors become together. Raises ValueError where they do not meet."""
    sizes: list[int] = []
    for sides in zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1):
        wide = set(sides) - {1}
        if len(wide) > 1:
            raise ValueError(f"shapes {' and '.join(map(str, shapes))[:120]} do not broadcast")
        sizes.append(wide.pop() if wide else 1)
    return tuple(sizes[::-1])
