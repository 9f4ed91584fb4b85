"""ONNX operators that normalize."""

from __future__ import annotations

from nnstretch.capture.onnx.graph_builder import OnnxValue
from nnstretch.capture.onnx.translation_context import NodeContext, TranslationRule


def epsilon(call: NodeContext) -> float:
    """Return the number that a norm adds to the variance."""
    return call.get_attribute("epsilon", 1e-5)  # type: ignore[no-any-return]


def batch_norm(call: NodeContext) -> OnnxValue:
    """Translate BatchNormalization. Raises UnsupportedOp when it is in training mode."""
    x = call.input(0)
    training = call.get_attribute("training_mode", 0) or not call.get_attribute("is_test", 1)
    if training or any(call.node.output[1:]):
        raise call.unsupported_error(
            "it is in training mode, export the network in evaluation mode"
        )
    names = ("weight", "bias", "running_mean", "running_var")
    roles = {name: call.input(i) for i, name in enumerate(names, start=1)}
    weights = call.builder.layer_weights(call.layer_path(roles["weight"]), roles)
    momentum = 1 - call.get_attribute("momentum", 0.9)
    return call.emit("batch_norm", x, *weights, False, momentum, epsilon(call), False)


def instance_norm(call: NodeContext) -> OnnxValue:
    """Translate InstanceNormalization."""
    roles = {"weight": call.input(1), "bias": call.input(2)}
    weights = call.builder.layer_weights(call.layer_path(), roles)
    statistics = (None, None, True, 0.0)
    return call.emit("instance_norm", call.input(0), *weights, *statistics, epsilon(call), False)


def layer_norm(call: NodeContext) -> OnnxValue:
    """Translate LayerNormalization.

    Raises UnsupportedOp when mean and deviation are written, too.
    """
    x = call.input(0)
    shape = x.shape[call.get_attribute("axis", -1) % x.rank :]
    if any(call.node.output[1:]):
        raise call.unsupported_error("it also writes mean and deviation")
    scale = call.input(1)
    shift = call.optional_input(2)
    roles = {
        "weight": expand_parameter(call, scale, shape),
        "bias": None if shift is None else expand_parameter(call, shift, shape),
    }
    weights = call.builder.layer_weights(call.layer_path(scale), roles)
    return call.emit("layer_norm", x, shape, *weights, epsilon(call), False)


def expand_parameter(call: NodeContext, value: OnnxValue, shape: tuple[int, ...]) -> OnnxValue:
    """Return a parameter in the very shape PyTorch wants it."""
    if value.shape == shape or not value.constant:
        return value
    return call.emit("clone", call.emit("expand", value, shape))


def group_norm(call: NodeContext) -> OnnxValue:
    """Translate GroupNormalization; parameters per group are repeated for its channels."""
    x = call.input(0)
    groups = call.get_attribute("num_groups")
    parameters: list[OnnxValue] = []
    for value in (call.input(1), call.input(2)):
        if value.shape == (groups,) and groups != x.shape[1]:
            value = call.emit("repeat_interleave.self_int", value, x.shape[1] // groups)
        parameters.append(value)
    weights = call.layer_weights(*parameters)
    return call.emit("group_norm", x, groups, *weights, epsilon(call), False)


def local_response_norm(call: NodeContext) -> OnnxValue:
    """Translate LRN: each number over a power of the mean square of its neighbours in channels.

    Raises UnsupportedOp for other tensors than maps, and for an even number of neighbours.
    """
    x, size = call.input(0), call.get_attribute("size")
    if x.rank != 4 or size % 2 == 0:
        why = f"over {size} channels of {x.rank} dimensions, known are odd numbers and 4 dimensions"
        raise call.unsupported_error(why)
    side, window = size // 2, (size, 1, 1)
    squares = call.emit("unsqueeze", call.emit("mul.Tensor", x, x), 1)
    wide = call.emit("constant_pad_nd", squares, (0, 0, 0, 0, side, side), 0.0)
    mean = call.emit("squeeze.dim", call.emit("avg_pool3d", wide, window, (1, 1, 1)), 1)
    scaled = call.emit("mul.Tensor", mean, call.get_attribute("alpha", 1e-4))
    shifted = call.emit("add.Tensor", scaled, call.get_attribute("bias", 1.0))
    power = call.emit("pow.Tensor_Scalar", shifted, call.get_attribute("beta", 0.75))
    return call.emit("div.Tensor", x, power)


NORM_RULES: dict[str, TranslationRule] = {
    "BatchNormalization": batch_norm,
    "InstanceNormalization": instance_norm,
    "LayerNormalization": layer_norm,
    "LRN": local_response_norm,
    "GroupNormalization": group_norm,
}
