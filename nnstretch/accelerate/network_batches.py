"""One network at any number of inputs: exported once, read at each batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nnstretch.accelerate.even_bags import open_even_bags
from nnstretch.accelerate.graph_rewriter import is_causal
from nnstretch.errors import BadInput, CannotCapture
from nnstretch.graph import Graph, InputShape, refs

if TYPE_CHECKING:
    import torch
    from torch import nn

    from nnstretch.capture.torch_export import CapturedNetwork

MOST_INPUT_BYTES = 1 << 33
"""Of one input of a batch, which lies in the host's memory while the network is captured."""


class NetworkBatches:
    """Graphs of a network by batch."""

    def __init__(self, module: nn.Module, examples: tuple[torch.Tensor, ...], name: str) -> None:
        self.module = module
        self.examples = examples
        self.name = name
        self._program: Any = None
        self._captured: dict[int, CapturedNetwork] = {}

    def captured(self, batch: int) -> CapturedNetwork:
        """Return graph and weights of a batch, captured the first time that it is asked for."""
        if batch not in self._captured:
            self._captured[batch] = self.read(batch)
        return self._captured[batch]

    def graph(self, batch: int) -> Graph:
        """Return the graph of a batch. Raises BadInput where the network has a batch of its own."""
        graph = self.captured(batch).graph
        sizes = first_sizes(value.spec.shape for value in graph.inputs)
        if sizes and sizes[0] != batch:
            raise BadInput(
                f"batch {batch}, {self.name}, the network computes {sizes[0]} inputs at once and no"
                " other number"
            )
        return graph

    def read(self, batch: int) -> CapturedNetwork:
        """Capture the network, or read its export again."""
        from nnstretch.capture.exported_program import eval_mode, export_program, is_guarded_for
        from nnstretch.capture.host_process import silence_python
        from nnstretch.capture.program_reader import read_program
        from nnstretch.capture.torch_export import recall_captured

        examples = self.inputs(batch)
        known = recall_captured(self.module, examples, self.name)
        if known is None:
            import torch

            with eval_mode(self.module), silence_python(), torch.no_grad():
                if self._program is None:
                    self._program = export_program(self.module, examples, self.name)
                known = read_program(self._program, batch, self.name)
                sizes = first_sizes(value.spec.shape for value in known.graph.inputs)
                is_fixed = bool(sizes) and sizes[0] != batch
                if is_fixed or not is_guarded_for(self._program, batch):
                    known = self.read_again(examples, batch) or known
        return replace(known, graph=open_even_bags(known.graph, known.weights))

    def read_again(self, examples: tuple[torch.Tensor, ...], batch: int) -> CapturedNetwork | None:
        """Export a network that was traced for another batch again, None where it has its own."""
        from nnstretch.capture.exported_program import export_program
        from nnstretch.capture.program_reader import read_program

        try:
            self._program = export_program(self.module, examples, self.name)
        except CannotCapture:
            return None
        return read_program(self._program, batch, self.name)

    def weights(self, batch: int) -> Mapping[str, torch.Tensor]:
        """Return the weights of the graph of a batch, and what follows from them and it alone."""
        from nnstretch.capture.weight_folding import fold_constants

        known = self.captured(batch)
        folded = fold_constants(known.graph, known.weights).tensors
        return {**folded, **causal_masks(known.graph)}

    def inputs(self, batch: int) -> tuple[torch.Tensor, ...]:
        """Return example inputs repeated to a batch. Raises BadInput for more than a host holds."""
        repeated: list[torch.Tensor] = []
        for example in self.examples:
            if not example.dim():
                repeated.append(example)
                continue
            times = -(-batch // example.shape[0])
            size_bytes = times * example.numel() * example.element_size()
            if size_bytes > MOST_INPUT_BYTES:
                raise BadInput(
                    f"{batch} inputs at once, {self.name}, they take {size_bytes} B of the host's"
                    f" memory, needed are at most {MOST_INPUT_BYTES} B, write a smaller --batch or"
                    " --per-cluster"
                )
            repeated.append(example.repeat(times, *[1] * (example.dim() - 1))[:batch])
        return tuple(repeated)

    def random_inputs(self, batch: int) -> tuple[torch.Tensor, ...]:
        """Return random inputs of a batch; whole numbers stay below those of the examples."""
        import torch

        generator = torch.Generator().manual_seed(0)
        drawn: list[torch.Tensor] = []
        for example in self.inputs(batch):
            if example.dtype.is_floating_point:
                numbers = torch.randn(example.shape, generator=generator)
                drawn.append(numbers.to(example.dtype))
            else:
                most = int(example.max()) + 1
                numbers = torch.randint(0, most, example.shape, generator=generator)
                drawn.append(numbers.to(example.dtype))
        return tuple(drawn)

    def outputs(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Return what the network itself computes; it may write into copies of the inputs only."""
        import torch
        from torch.utils._pytree import tree_leaves

        from nnstretch.capture.exported_program import eval_mode

        with eval_mode(self.module), torch.no_grad():
            return tuple(tree_leaves(self.module(*(value.clone() for value in inputs))))


def first_sizes(shapes: Iterable[Sequence[int]]) -> list[int]:
    """Return the different first sizes of shapes, in order; a number has none."""
    return list(dict.fromkeys(shape[0] for shape in shapes if shape))


def batch_of(inputs: Sequence[InputShape]) -> int:
    """Return the first size of given inputs, 1 without any. Raises BadInput for several sizes."""
    sizes = first_sizes(entry.shape for entry in inputs)
    if len(sizes) > 1:
        raise BadInput(
            f"{' and '.join(map(str, sizes))} inputs at once, --input, write --batch N or equal"
            " first sizes"
        )
    return sizes[0] if sizes else 1


def causal_masks(graph: Graph) -> dict[str, torch.Tensor]:
    """Return the masks of causal attention by the names under which a chip's graph reads them."""
    import torch

    masks: dict[str, torch.Tensor] = {}
    specs = graph.specs()
    for node in graph.nodes:
        if node.kind == "scaled_dot_product_attention" and is_causal(node):
            query, key = list(refs(node.args))[:2]
            sizes = specs[query].shape[-2], specs[key].shape[-2]
            masks[f"{node.name}_mask"] = torch.ones(sizes, dtype=torch.bool).tril()
    return masks
