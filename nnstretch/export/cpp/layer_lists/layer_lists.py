"""Both lists of a network, and their files in an exported folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from nnstretch.capture.torch_export import CapturedNetwork
from nnstretch.export.cpp.layer_lists.attributes import Record
from nnstretch.export.cpp.layer_lists.definition_order import definition_order
from nnstretch.export.cpp.layer_lists.forward_order import forward_order
from nnstretch.export.cpp.translate import Placement, nowhere


@dataclass(frozen=True)
class LayerLists:
    """A network as CEDR's translator writes it."""

    definition: list[Record]
    forward: list[Record]

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield path and text of each list's file in the folder."""
        for name, records in (("definition", self.definition), ("forward", self.forward)):
            yield f"layers/{name}.json", json.dumps(records, indent=1, allow_nan=False) + "\n"


def list_layers(
    module: nn.Module, captured: CapturedNetwork, placement: Placement = nowhere
) -> LayerLists:
    """List the layers of a module as they are defined, and as one captured forward runs them."""
    return LayerLists(definition_order(module), forward_order(module, captured, placement))
