"""Tensors of a network keep their names when it is rebuilt, and no layer takes them for its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from nnstretch.capture import load_model, trace
from nnstretch.capture.rebuild_module import build
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import stretch
from nnstretch.stretch.weights.feature_matching import FeatureTeacher


class RowLinear(nn.Linear):
    """Bias added after the product, as where its terms lie on several machines."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight) + self.bias


class BiasedBehind(nn.Conv2d):
    """Bias added after the convolution."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.conv2d(x, self.weight, None, self.stride, self.padding)
        return y.relu() + self.bias.view(1, -1, 1, 1)


class ScaledBefore(nn.Conv2d):
    """Input scaled and shifted by tensors of the convolution's own."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__(cin, cout, 3)
        self.scale = nn.Parameter(torch.rand(1, cin, 1, 1) + 1)
        self.register_buffer("offset", torch.rand(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * self.scale + self.offset)


class ZeroCentred(nn.BatchNorm2d):
    """Batch norm whose scale is 1 + weight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        statistics = self.running_mean, self.running_var
        y = functional.batch_norm(x, *statistics, training=self.training)
        return y * (1 + self.weight.view(1, -1, 1, 1)) + self.bias.view(1, -1, 1, 1)


class Affine(nn.Module):
    """Layer norm without weights, times a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4) + 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (4,)) * self.weight


class Shifted(nn.Module):
    """Layer norm with a bias alone."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.rand(4) + 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (4,), None, self.bias)


class Score(nn.Module):
    """Product with a vector, which is no layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4) + 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight)


class Scaler(nn.Module):
    """Dropout of a scaled tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4) + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x * self.scale, 0.5, self.training)


class Named(nn.Module):
    """A linear layer, and a module under a name that its operator or a module bears, too."""

    def __init__(self, name: str, part: nn.Module) -> None:
        super().__init__()
        self.fc, self.name = nn.Linear(4, 4), name
        self.add_module(name, part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.get_submodule(self.name)(self.fc(x))


class NormTwice(Named):
    """A norm without weights in front of one with weights, which has the operator's name."""

    def __init__(self) -> None:
        super().__init__("layer_norm", nn.LayerNorm(4))
        nn.init.normal_(self.layer_norm.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer_norm(functional.layer_norm(self.fc(x), (4,)))


class Root(nn.Module):
    """A parameter under the name of an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.layer_norm = nn.Parameter(torch.rand(4) + 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (4,)) * self.layer_norm


class Signs(nn.Module):
    """Layers and parameters whose names differ only in what no attribute may bear."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.ModuleDict({"-1": nn.Linear(4, 4), "+1": nn.Linear(4, 4)})
        parts = {key: torch.rand(4) + number for number, key in enumerate(SIGNS)}
        self.parts = nn.ParameterDict(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.rows["-1"](x) + 2 * self.rows["+1"](x)
        for number, key in enumerate(SIGNS):
            y = y + (number + 1) * self.parts[key]
        return y


SIGNS = ("a-b", "a+b", "a_b", "w_a_b", "w_a_2b_b", "c-d")


def on_vectors() -> dict[str, nn.Module]:
    """Return networks that read 4 numbers."""
    return {
        "row linear": nn.Sequential(RowLinear(4, 4)),
        "norm": Named("layer_norm", Affine()),
        "bias alone": Named("norm", Shifted()),
        "vector": Named("score", Score()),
        "two norms": NormTwice(),
        "dropout": Named("dropout", Scaler()),
        "root": Root(),
    }


def on_images() -> dict[str, nn.Module]:
    """Return networks that read images of 3 channels."""
    torch.manual_seed(0)
    centred = ZeroCentred(4)
    nn.init.normal_(centred.weight)
    return {
        "conv": nn.Sequential(BiasedBehind(3, 4, 3)),
        "scaled conv": nn.Sequential(ScaledBefore(3, 4)),
        "batch norm": nn.Sequential(nn.Conv2d(3, 4, 3), centred),
    }


@pytest.mark.parametrize("key", [*on_vectors(), *on_images()])
def test_tensors_that_no_layer_reads_as_its_own_change_nothing_in_it(key: str) -> None:
    torch.manual_seed(0)
    module = (on_vectors() | on_images())[key].eval()
    x = torch.randn(2, 4) if key in on_vectors() else torch.randn(2, 3, 6, 6)
    captured = trace(module, x[:1], "net")
    rebuilt = build(captured.graph, captured.weights).eval()
    torch.testing.assert_close(rebuilt(x), module(x))
    assert set(dict(rebuilt.named_parameters())) == set(dict(module.named_parameters()))
    plan = Plan("net", tuple(x[:1].shape), (Segment("input", "output", (Branch("cpu"),)),))
    torch.testing.assert_close(stretch(module, plan).eval()(x), module(x))


def test_a_norm_with_a_scale_of_its_own_learns_statistics() -> None:
    module, x = on_images()["batch norm"].eval(), torch.randn(4, 3, 6, 6) + 2
    captured = trace(module, x, "net")
    rebuilt = build(captured.graph, captured.weights)
    torch.testing.assert_close(rebuilt.train()(x), module.train()(x))
    torch.testing.assert_close(rebuilt.eval()(x), module.eval()(x))


def test_names_that_differ_in_signs_alone_stay_different(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = Signs().eval(), torch.randn(2, 4)
    captured = trace(module, x, "net")
    rebuilt = build(captured.graph, captured.weights).eval()
    torch.testing.assert_close(rebuilt(x), module(x))
    assert len(dict(rebuilt.named_parameters())) == len(dict(module.named_parameters()))
    named = {name.partition(".")[2] for name, _ in rebuilt.named_parameters()}
    assert {"a_b", "w_a_b", "w_a_2b_b", "w_c_d"} <= named  # as without the siblings
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "net.pt2")
    torch.testing.assert_close(load_model(str(tmp_path / "net.pt2")).eval()(x), module(x))


def test_a_teacher_shares_tensors_whose_names_differ_in_signs_alone() -> None:
    module, x = Signs().eval(), torch.randn(1, 4)
    plan = Plan("net", (1, 4), (Segment("input", "output", (Branch("cpu"),)),))
    teacher = FeatureTeacher(module, stretch(module, plan))
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    torch.testing.assert_close(teacher(x)[0], module(x))


@pytest.mark.parametrize("name", ["graph", "code", "meta"])
def test_modules_may_have_names_that_torch_fx_uses_itself(name: str) -> None:
    module, x = Named(name, nn.Linear(4, 4)).eval(), torch.randn(1, 4)
    captured = trace(module, x, "net")
    torch.testing.assert_close(build(captured.graph, captured.weights).eval()(x), module(x))


def test_an_onnx_tensor_named_like_a_bias_is_none(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight, bias = torch.randn(4, 3, 3, 3), torch.rand(4, 1, 1)
    nodes = [
        helper.make_node("Conv", ["x", "c.weight"], ["y"]),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("Add", ["z", "c.bias"], ["out"]),
    ]
    ends = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 3, 6, 6]), ("out", [1, 4, 4, 4]))
    )
    tensors = [
        numpy_helper.from_array(tensor.numpy(), name)
        for name, tensor in (("c.weight", weight), ("c.bias", bias))
    ]
    graph = helper.make_graph(nodes, "net", [next(ends)], list(ends), tensors)
    onnx.save(helper.make_model(graph), tmp_path / "net.onnx")
    x = torch.randn(1, 3, 6, 6)
    expected = functional.conv2d(x, weight).relu() + bias
    torch.testing.assert_close(load_model(str(tmp_path / "net.onnx")).eval()(x), expected)
