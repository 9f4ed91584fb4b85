"""What cannot be captured or exported is refused with its operator, module and line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import nnstretch
from nnstretch.capture import build, trace
from nnstretch.capture.torch_export import capture
from nnstretch.cli import main
from nnstretch.errors import CannotCapture, UnsupportedOp
from nnstretch.export.bundle import export
from nnstretch.export.onnx.convert import export_model
from nnstretch.partition.pieces import export_whole
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import stretch
from nnstretch.structure.slices.mixing import linear_boxes

Step = Callable[[torch.Tensor], torch.Tensor]
SHAPE = (1, 3, 8, 8)
FILE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.conv(x)
        return y.float()
"""


class Inner(nn.Module):
    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.step(x)


def network(step: Step) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), Inner(step), nn.ReLU()).eval()


def export_net(module: nn.Module, folder: Path) -> None:
    plan = Plan("net", SHAPE, (Segment("input", "output", (Branch("cpu"),)),))
    export(stretch(module, plan).eval(), plan, folder / "net.nns")


DRAWS: dict[str, Step] = {
    "randn": lambda x: x + torch.randn(1, 4, 8, 8),
    "rand": lambda x: x + torch.rand(1, 4, 8, 8),
    "randn_like": lambda x: x + torch.randn_like(x),
    "bernoulli": lambda x: x * torch.bernoulli(torch.sigmoid(x)),
    "normal_functional": lambda x: x + torch.empty(1, 4, 8, 8).normal_(),
    "exponential": lambda x: x + torch.empty_like(x).exponential_(),
    "randperm": lambda x: x[:, torch.randperm(4)],
    "multinomial": lambda x: x[:, torch.multinomial(torch.ones(4), 4)],
}


@pytest.mark.parametrize("operator", DRAWS)
def test_random_numbers_are_refused_by_operator_and_module(operator: str, tmp_path: Path) -> None:
    module = network(DRAWS[operator])
    says = rf"cannot export net, {operator} \(\w+\) in 1 draws random numbers"
    with pytest.raises(UnsupportedOp, match=says):
        export_net(module, tmp_path)
    captured = trace(module, torch.zeros(SHAPE), "net")
    with pytest.raises(UnsupportedOp, match=says):
        export_whole(captured.graph, captured.weights, module, lambda *_: None)
    assert not list(tmp_path.iterdir())


SWITCHED: dict[str, Step] = {
    "scaled_dot_product_attention": lambda x: functional.scaled_dot_product_attention(
        x, x, x, dropout_p=0.5
    ),
    "rrelu": lambda x: functional.rrelu(x, training=True),
    "feature_dropout": lambda x: functional.dropout2d(x, 0.5, training=True),
}


@pytest.mark.parametrize("operator", SWITCHED)
def test_dropping_by_chance_in_evaluation_is_refused(operator: str) -> None:
    with pytest.raises(CannotCapture, match=f"net, {operator} in 1 drops numbers by chance"):
        trace(network(SWITCHED[operator]), torch.zeros(SHAPE), "net")


def test_what_is_switched_off_draws_nothing(tmp_path: Path) -> None:
    def quiet(x: torch.Tensor) -> torch.Tensor:
        attended = functional.scaled_dot_product_attention(x, x, x, dropout_p=0.0)
        return functional.dropout(attended, 0.5, training=False)

    export_net(network(quiet), tmp_path)
    assert (tmp_path / "net.nns").exists()


def test_an_average_with_a_divisor_of_its_own_is_refused_by_onnx(tmp_path: Path) -> None:
    module = network(lambda x: functional.avg_pool2d(x, 2, divisor_override=3))
    captured = trace(module, torch.zeros(SHAPE), "net")
    x = torch.randn(SHAPE)
    torch.testing.assert_close(build(captured.graph, captured.weights).eval()(x), module(x))
    with pytest.raises(UnsupportedOp, match=r"avg_pool2d \(\w+\) in 1 has divisor_override=3"):
        export_net(module, tmp_path)


class Recurrent(nn.Module):
    def __init__(self, **settings: int | bool) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 6, batch_first=True, **settings)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.recurrent(x)[0]


def rebuilt(module: nn.Module, x: torch.Tensor) -> nn.Module:
    captured = trace(module.eval(), x, "net")
    return build(captured.graph, captured.weights).eval()


def test_a_projected_lstm_is_refused_by_onnx() -> None:
    x = torch.randn(1, 5, 8)
    for settings in ({"proj_size": 3}, {"proj_size": 3, "num_layers": 2, "bias": False}):
        module = Recurrent(**settings)
        torch.testing.assert_close(rebuilt(module, x)(x), module(x))
        with pytest.raises(UnsupportedOp, match=r"lstm \(\w+\) in recurrent has proj_size, which"):
            export_model("net", rebuilt(module, x), (x,))
    export_model("net", rebuilt(Recurrent(num_layers=2, bidirectional=True), x), (x,))


SIZED: dict[str, Step] = {
    "index": lambda x: x[:, x.mean((0, 2, 3)) > 0],
    "nonzero": lambda x: x + torch.nonzero(x > 0).shape[0],
    "masked_select": lambda x: x + torch.masked_select(x, x > 0).mean(),
    "_unique2": lambda x: x + torch.unique(x.round()).sum(),
    "bincount": lambda x: x + torch.bincount((x > 0).long().reshape(-1)).sum(),
}


@pytest.mark.parametrize("operator", SIZED)
def test_sizes_that_data_decide_are_refused_by_operator_module_and_line(operator: str) -> None:
    says = (
        rf"net, {operator} \(\w+\) in 1, test_refused_networks.py:\d+, makes a tensor whose size"
        " depends on the numbers it reads"
    )
    with pytest.raises(CannotCapture, match=says):
        trace(network(SIZED[operator]), torch.zeros(SHAPE), "net")


def test_a_look_at_values_is_refused_with_its_line() -> None:
    with pytest.raises(CannotCapture, match=r"torch.export refuses: .*; at test_refused_networks"):
        trace(network(lambda x: x if x.sum() > 0 else -x), torch.zeros(SHAPE), "net")


def test_a_line_of_pythons_own_library_is_not_named() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return x * scale

    with pytest.raises(CannotCapture, match=r"missing a required argument: 'scale'$"):
        trace(Scaled(), torch.zeros(SHAPE), "net")


def test_lower_precision_that_is_left_out_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(FILE)
    note = "torch.autocast (bfloat16) at net.py:13 is left out: captured is float32"
    for command in (["inspect"], ["export", "--out", "net.nns"]):
        arguments = [command[0], "net.py:Net", "--input", "1,3,8,8", *command[1:]]
        assert main([*arguments, "--json"]) == 0
        assert note in capsys.readouterr().out
    assert main(["inspect", "net.py:Net", "--input", "1,3,8,8"]) == 0
    assert f"note: {note}" in " ".join(capsys.readouterr().out.split())
    module = nnstretch.load_model("net.py:Net")
    with pytest.warns(UserWarning, match=r"net: torch\.autocast \(bfloat16\) at net.py:13"):
        capture(module, torch.zeros(SHAPE), "net")


def test_autocast_that_is_off_is_not_noted() -> None:
    def plain(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return x * 2

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capture(network(plain), torch.zeros(SHAPE), "net")


def test_an_input_of_another_type_than_its_weights_is_refused() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.ReLU())
    with pytest.raises(CannotCapture, match=r"its input input is float16, conv2d .* needs float32"):
        capture(module, torch.zeros(1, 3, 8, 8, dtype=torch.float16))
    half = capture(module.half(), torch.zeros(1, 3, 8, 8, dtype=torch.float16))
    assert half.inputs[0].spec.dtype == "float16"


def test_an_input_may_be_its_own_weight() -> None:
    module = nn.Sequential()
    module.forward = lambda x: nn.functional.linear(x, x)  # type: ignore[method-assign]
    x = torch.randn(4, 4)
    captured = trace(module, x)
    torch.testing.assert_close(build(captured.graph, captured.weights)(x), x @ x.T)
    (node,), specs = captured.graph.nodes, captured.graph.specs()
    assert linear_boxes(node, ((0, 1), (2, 3)), specs) == {node.inputs[0]: ((0, 3), (0, 4))}


class ManyAxes(nn.Module):
    """Two inputs, and a tensor of more axes than a session takes."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(a.reshape(*[1] * 16, 4)).sum(-1).reshape(1) + b


def test_a_whole_network_is_exported_only_where_a_session_opens_it() -> None:
    module = ManyAxes()
    captured = trace(module, (torch.zeros(1, 4), torch.zeros(1)), "axes")
    says = "^cannot export axes as onnx, sub-graph piece0, .* 17 axes, limit 16"
    with pytest.raises(UnsupportedOp, match=says):
        export_whole(captured.graph, captured.weights, module, lambda *_: None)
