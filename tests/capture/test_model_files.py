"""A FILE.py is the user's own program: what it may say, and what lies beside it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from nnstretch.capture.model_spec import load_model
from nnstretch.capture.rebuild_module import build
from nnstretch.capture.torch_export import trace
from nnstretch.errors import CannotCapture
from nnstretch.files.plan_yaml import parse_plan, plan_text
from nnstretch.stretch import single_processor_plan

NETWORK = "from torch import nn\n"


def written(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def channels_of(folder: Path) -> int:
    layer = load_model(f"{folder / 'net.py'}:make")
    assert isinstance(layer, nn.Linear)
    return layer.out_features


def test_each_folder_has_helpers_of_its_own(tmp_path: Path) -> None:
    net = NETWORK + "from widths import WIDTH\n\ndef make():\n    return nn.Linear(2, WIDTH)\n"
    first = written(tmp_path / "a", net=net, widths="WIDTH = 4\n")
    second = written(tmp_path / "b", net=net, widths="WIDTH = 7\n")
    assert [channels_of(folder) for folder in (first, second, first)] == [4, 7, 4]


def test_a_factory_may_import_when_it_is_called(tmp_path: Path) -> None:
    net = NETWORK + "\ndef make():\n    from late import WIDTH\n    return nn.Linear(2, WIDTH)\n"
    assert channels_of(written(tmp_path, net=net, late="WIDTH = 5\n")) == 5


def test_annotations_that_are_read_later_and_pickles_work(tmp_path: Path) -> None:
    net = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n" + NETWORK + "\n"
        "@dataclass\nclass Size:\n    width: int = 3\n\n"
        "class Layer(nn.Linear):\n    pass\n\n"
        "def make():\n    return Layer(2, Size().width)\n"
    )
    written(tmp_path, net=net)
    layer = load_model(f"{tmp_path / 'net.py'}:make")
    assert type(pickle.loads(pickle.dumps(layer))) is type(layer)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Average over pixels."""
        return self.head(torch.relu(self.first(x)).mean((2, 3)))


@pytest.fixture(scope="module")
def onnx_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    torch.onnx.export(Small().eval(), (torch.ones(1, 3, 8, 8),), path, dynamo=True, verbose=False)
    return str(path)


def changed_head(module: nn.Module) -> None:
    module.head = nn.Linear(4, 2)


def changed_stride(module: nn.Module) -> None:
    module.first.stride = (2, 2)


def added_hook(module: nn.Module) -> None:
    module.first.register_forward_hook(lambda layer, args, result: 10 * result)


def removed_layer(module: nn.Module) -> None:
    module.head = nn.Identity()


@pytest.mark.parametrize("change", [changed_head, changed_stride, added_hook, removed_layer])
def test_a_network_of_a_file_that_was_changed_is_captured_as_it_is(
    change: Callable[[nn.Module], None], onnx_path: str
) -> None:
    module, x = load_model(onnx_path).eval(), torch.randn(1, 3, 8, 8)
    change(module)
    captured = trace(module, x, "net")
    expected = module(x)
    assert captured.graph.specs()[captured.graph.outputs[0]].shape == tuple(expected.shape)
    torch.testing.assert_close(build(captured.graph, captured.weights).eval()(x), expected)


def test_a_hook_that_the_exporter_leaves_out_is_refused(onnx_path: str) -> None:
    module = load_model(onnx_path)
    module.register_forward_hook(lambda layer, args, result: 10 * result)
    with pytest.raises(
        CannotCapture, match=r"^cannot capture net, it is a GraphModule with a hook"
    ):
        trace(module, torch.ones(1, 3, 8, 8), "net")


def test_a_folder_may_have_spaces_of_any_width_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "net\u3000work\u00a01"
    folder.mkdir()
    (folder / "net.py").write_text(
        "from torch import nn\n\ndef make():\n    return nn.Linear(4, 2)\n"
    )
    spec = f"{folder}/net.py:make"
    network = load_model(spec)
    plan = single_processor_plan(trace(network, torch.zeros(1, 4), spec).graph, spec, "cpu")
    assert parse_plan(plan_text(plan), "plan.yaml") == plan
