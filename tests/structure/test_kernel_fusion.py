"""Fusion: what becomes one launch, and that nothing is lost or counted twice."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.graph import Argument, Graph, Node, TensorSpec, Value, ValueRef, Weight
from nnstretch.structure.kernel_fusion import fuse_kernels
from nnstretch.structure.kernel_operators import is_free


class Net:
    """A small graph written down operator by operator."""

    def __init__(self, *shape: int) -> None:
        self.inputs = (Value("x", TensorSpec(shape)),)
        self.weights: list[Weight] = []
        self.nodes: list[Node] = []
        self.shapes = {"x": shape}

    def op(
        self,
        op: str,
        *args: Argument,
        shape: Sequence[int] | None = None,
        macs: int = 0,
        outputs: int = 1,
    ) -> str:
        first = next(a.name for a in args if isinstance(a, ValueRef)) if shape is None else ""
        shape = tuple(shape if shape is not None else self.shapes[first])
        name = f"{op.split('.')[0]}_{len(self.nodes)}"
        self.nodes.append(Node(name, op, args, (TensorSpec(shape),) * outputs, macs=macs))
        self.shapes[name] = shape
        return name

    def weight(self, *shape: int, trainable: bool = True) -> ValueRef:
        name = f"w{len(self.weights)}"
        self.weights.append(Weight(name, TensorSpec(shape), trainable))
        self.shapes[name] = shape
        return ValueRef(name)

    def conv(self, x: str, cout: int, k: int = 3, stride: int = 1, groups: int = 1) -> str:
        n, cin, h, w = self.shapes[x]
        shape = (n, cout, -(-h // stride), -(-w // stride))
        macs = shape[0] * shape[1] * shape[2] * shape[3] * k * k * cin // groups
        weight = self.weight(cout, cin // groups, k, k)
        return self.op(
            "conv2d",
            ValueRef(x),
            weight,
            None,
            (stride, stride),
            (k // 2, k // 2),
            (1, 1),
            groups,
            shape=shape,
            macs=macs,
        )

    def norm(self, x: str) -> str:
        c = self.shapes[x][1]
        return self.op(
            "batch_norm",
            ValueRef(x),
            *(self.weight(c, trainable=i < 2) for i in range(4)),
            False,
            0.1,
            1e-5,
            True,
        )

    def relu(self, x: str) -> str:
        return self.op("relu", ValueRef(x))

    def add(self, x: str, y: str) -> str:
        return self.op("add.Tensor", ValueRef(x), ValueRef(y))

    def graph(self, *outputs: str) -> Graph:
        return Graph(
            "net",
            self.inputs,
            tuple(self.weights),
            tuple(self.nodes),
            outputs or (self.nodes[-1].name,),
        )


def shapes_of(graph: Graph) -> list[str]:
    return [
        f"{k.kind}: {' '.join(name.split('_')[0] for name in k.nodes)}" for k in fuse_kernels(graph)
    ]


def test_convolution_norm_and_activation_are_one_launch() -> None:
    net = Net(1, 3, 8, 8)
    net.relu(net.norm(net.conv("x", 16, k=3, stride=2)))
    (kernel,) = fuse_kernels(net.graph())
    assert (kernel.kind, kernel.cin, kernel.cout, kernel.hw_in, kernel.hw_out) == (
        "conv",
        3,
        16,
        64,
        16,
    )
    assert (kernel.kernel, kernel.stride, kernel.groups, kernel.batch) == (3, 2, 1, 1)
    assert kernel.macs == 16 * 16 * 27
    assert (kernel.read_elements, kernel.write_elements) == (3 * 64, 16 * 16)
    assert kernel.weight_elements == 16 * 27 + 16, "a folded batch norm leaves one bias per channel"


def test_maps_of_one_dimension_have_their_channels_first() -> None:
    net = Net(1, 8, 16)
    net.op("adaptive_avg_pool1d", ValueRef("x"), (1,), shape=(1, 8, 1))
    (kernel,) = fuse_kernels(net.graph())
    assert (kernel.kind, kernel.cin, kernel.cout) == ("gap", 8, 8)
    assert (kernel.hw_in, kernel.hw_out) == (16, 1)


@pytest.mark.parametrize(
    ("op", "shape", "axis"), [("conv1d", (1, 24, 16), 2), ("linear", (1, 16, 24), 1)]
)
def test_a_mean_over_length_or_tokens_has_the_channels_that_its_layer_wrote(
    op: str, shape: tuple[int, ...], axis: int
) -> None:
    net = Net(*((1, 8, 16) if op == "conv1d" else (1, 16, 8)))
    net.op(op, ValueRef("x"), net.weight(24, 8, *((3,) if op == "conv1d" else ())), shape=shape)
    net.op("mean.dim", ValueRef(net.nodes[-1].name), (axis,), shape=(1, 24))
    kernel = fuse_kernels(net.graph())[-1]
    assert (kernel.kind, kernel.cin, kernel.cout, kernel.hw_in) == ("gap", 24, 24, 16)


def test_a_residual_sum_joins_the_later_of_its_operands() -> None:
    net = Net(1, 8, 8, 8)
    body = net.norm(net.conv(net.relu(net.conv("x", 8)), 8))
    net.relu(net.add(body, "x"))
    assert shapes_of(net.graph()) == ["conv: conv2d relu", "conv: conv2d batch add relu"]
    assert fuse_kernels(net.graph())[1].read_elements == 2 * 8 * 64, "the shortcut is read as well"


def test_a_shortcut_that_is_computed_last_carries_the_sum() -> None:
    net = Net(1, 8, 8, 8)
    body, shortcut = net.norm(net.conv("x", 16)), net.norm(net.conv("x", 16, k=1))
    net.relu(net.add(body, shortcut))
    assert shapes_of(net.graph()) == ["conv: conv2d batch", "conv: conv2d batch add relu"]


def test_a_value_that_others_still_need_is_written_before_it_is_activated() -> None:
    net = Net(1, 8, 8, 8)
    open_value = net.conv("x", 8)
    net.add(net.relu(open_value), open_value)
    assert shapes_of(net.graph()) == ["conv: conv2d", "activation: relu", "add: add"]


def test_an_output_of_the_network_is_not_fused_away() -> None:
    net = Net(1, 8, 8, 8)
    first = net.conv("x", 8)
    last = net.relu(first)
    assert shapes_of(net.graph(first, last)) == ["conv: conv2d", "activation: relu"]


def test_a_value_added_to_itself_is_a_launch_of_its_own() -> None:
    net = Net(1, 8, 8, 8)
    net.add(first := net.conv("x", 8), first)
    assert shapes_of(net.graph()) == ["conv: conv2d", "add: add"]


@pytest.mark.parametrize(("groups", "kind"), [(1, "conv"), (2, "gconv"), (8, "dwconv")])
def test_groups_decide_the_kind(groups: int, kind: str) -> None:
    net = Net(1, 8, 4, 4)
    net.conv("x", 8, groups=groups)
    assert fuse_kernels(net.graph())[0].kind == kind


def test_views_dropout_and_shape_reads_are_free() -> None:
    net = Net(2, 8, 4, 4)
    pooled = net.op("adaptive_avg_pool2d", ValueRef("x"), (1, 1), shape=(2, 8, 1, 1))
    net.op("sym_size.int", ValueRef(pooled), 0, shape=())
    flat = net.op(
        "dropout",
        ValueRef(net.op("flatten.using_ints", ValueRef(pooled), 1, shape=(2, 8))),
        0.5,
        False,
    )
    net.relu(
        net.op("linear", ValueRef(flat), net.weight(10, 8), net.weight(10), shape=(2, 10), macs=180)
    )
    assert shapes_of(net.graph()) == ["gap: adaptive sym flatten dropout", "linear: linear relu"]
    head = fuse_kernels(net.graph())[1]
    assert (head.cin, head.cout, head.hw_in, head.batch, head.weight_elements) == (8, 10, 1, 2, 90)


def test_squeeze_and_excitation_keeps_its_product() -> None:
    net = Net(1, 8, 4, 4)
    gate = net.op(
        "sigmoid",
        ValueRef(
            net.conv(net.op("mean.dim", ValueRef("x"), (2, 3), True, shape=(1, 8, 1, 1)), 8, k=1)
        ),
    )
    net.op("mul.Tensor", ValueRef("x"), ValueRef(gate), shape=(1, 8, 4, 4))
    assert shapes_of(net.graph()) == ["gap: mean", "conv: conv2d sigmoid", "mul: mul"]


def test_a_norm_before_its_convolution_is_its_own_launch() -> None:
    net = Net(1, 8, 4, 4)
    net.conv(net.relu(net.norm("x")), 8)
    assert shapes_of(net.graph()) == ["norm: batch relu", "conv: conv2d"]


def test_attention_counts_both_products() -> None:
    net = Net(1, 2, 5, 4)
    net.op("scaled_dot_product_attention", ValueRef("x"), ValueRef("x"), ValueRef("x"))
    (kernel,) = fuse_kernels(net.graph())
    assert (kernel.kind, kernel.macs) == ("matmul", 2 * 2 * 5 * 5 * 4)


@pytest.mark.parametrize(
    "equation", ["abcd,abed->abce", "...cd,...ed->...ce", "ab...d, ab...d -> ab..."]
)
def test_einsum_counts_every_index_once(equation: str) -> None:
    net = Net(2, 3, 4, 5)
    shape = (2, 3, 4, 4) if "e" in equation else (2, 3, 4)
    net.op("einsum", equation, (ValueRef("x"), ValueRef("x")), shape=shape)
    (kernel,) = fuse_kernels(net.graph())
    macs = 2 * 3 * 4 * 5 * (4 if "e" in equation else 1)
    assert (kernel.kind, kernel.op, kernel.macs) == ("matmul", "einsum", macs)


@pytest.mark.parametrize("kind", ["inner", "linalg_matmul", "mv", "tensordot"])
def test_one_product_of_two_tensors_is_a_kernel_of_one_kind(kind: str) -> None:
    net = Net(5, 5)
    net.op(kind, ValueRef("x"), ValueRef("x"), *([(1,), (0,)] if kind == "tensordot" else []))
    (kernel,) = fuse_kernels(net.graph())
    assert (kernel.kind, kernel.op, kernel.macs) == ("matmul", kind, 5 * 5 * 5)


def test_a_product_counts_its_work_whatever_its_kind_of_kernel() -> None:
    net = Net(3, 5, 5)
    net.op("baddbmm", ValueRef("x"), ValueRef("x"), ValueRef("x"))
    (kernel,) = fuse_kernels(net.graph())
    assert (kernel.op, kernel.macs) == ("baddbmm", 3 * 5 * 5 * 5)


def test_operators_on_weights_alone_cost_nothing() -> None:
    net = Net(1, 4, 6)
    bias = net.op(
        "permute",
        ValueRef(net.op("view", net.weight(24), (4, 6), shape=(4, 6))),
        (1, 0),
        shape=(6, 4),
    )
    net.op("linear", ValueRef("x"), ValueRef(bias), shape=(1, 4, 6), macs=144)
    assert shapes_of(net.graph()) == ["linear: linear"]


def test_an_operator_without_a_rule_keeps_its_name() -> None:
    net = Net(1, 8, 4, 4)
    net.op("made_up.Tensor", ValueRef(net.conv("x", 8)))
    assert [k.kind for k in fuse_kernels(net.graph())] == ["conv", "made_up.Tensor"]


@st.composite
def random_graphs(draw: st.DrawFn) -> Graph:
    """Any small DAG of the operators that networks are made of, all of one shape."""
    net = Net(1, 8, 4, 4)
    values = ["x"]
    for _ in range(draw(st.integers(1, 25))):
        source = draw(st.sampled_from(values[-4:] + values[:1]))
        kind = draw(
            st.sampled_from(
                (
                    "conv",
                    "dwconv",
                    "norm",
                    "relu",
                    "add",
                    "add",
                    "mul",
                    "view",
                    "dropout",
                    "size",
                    "pool",
                    "odd",
                )
            )
        )
        other = draw(st.sampled_from(values))
        if kind == "size":
            net.op("sym_size.int", ValueRef(source), 1, shape=())
            continue
        makers = {
            "conv": lambda v, _: net.conv(v, 8),
            "dwconv": lambda v, _: net.conv(v, 8, groups=8),
            "norm": lambda v, _: net.norm(v),
            "relu": lambda v, _: net.relu(v),
            "add": net.add,
            "mul": lambda v, w: net.op("mul.Tensor", ValueRef(v), ValueRef(w)),
            "view": lambda v, _: net.op("view", ValueRef(v), (1, 8, 4, 4)),
            "dropout": lambda v, _: net.op("dropout", ValueRef(v), 0.1, False),
            "pool": lambda v, _: net.op("max_pool2d", ValueRef(v), (3, 3), (1, 1), (1, 1)),
            "odd": lambda v, _: net.op("odd", ValueRef(v)),
        }
        values.append(makers[kind](source, other))
    outputs = draw(st.sets(st.sampled_from(values), min_size=1, max_size=3))
    return net.graph(*sorted(outputs))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(random_graphs())
def test_every_node_that_works_is_in_exactly_one_kernel_that_can_run(graph: Graph) -> None:
    found = fuse_kernels(graph)
    placed = [name for kernel in found for name in kernel.nodes]
    assert len(placed) == len(set(placed))
    assert {node.name for node in graph.nodes if not is_free(node)} <= set(placed)
    assert sum(kernel.macs for kernel in found) == graph.macs
    home = {name: number for number, kernel in enumerate(found) for name in kernel.nodes}
    for node in graph.nodes:
        for name in node.inputs:
            if node.name in home and name in home:
                assert home[name] <= home[node.name], f"{node.name} runs before {name} exists"
    assert fuse_kernels(graph) == found


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(random_graphs())
def test_nothing_inside_a_kernel_is_read_outside_but_its_end(graph: Graph) -> None:
    """A value that is fused away exists nowhere, so nobody else may want it."""
    readers = graph.consumers()
    nodes = {node.name: node for node in graph.nodes}
    for kernel in fuse_kernels(graph):
        own = set(kernel.nodes)
        working = [name for name in kernel.nodes if not is_free(nodes[name])]
        for name in working[:-1]:
            assert name not in graph.outputs
            assert all(reader.name in own for reader in readers.get(name, ()))
