"""Tasks as fine as those of CEDR's translator: a call for every pair of channels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod

from nnstretch.errors import BadInput
from nnstretch.export.cpp import view_algebra
from nnstretch.export.cpp.program import (
    Activation,
    CallGroup,
    OperatorCall,
    TensorBuffer,
    TensorView,
    dense_strides,
    whole_view,
)

MOST_TASKS = 1000
"""A compiler takes a tenth of a second for the text of each."""


def channel_groups(calls: Sequence[OperatorCall], network: str) -> tuple[CallGroup, ...]:
    """Put a convolution of each pair of channels, each sum of planes and each product into a task.

    A plane of a result starts at 0; planes of its inputs, the bias and a residual are added one by
    one. Raises BadInput above MOST_TASKS.
    """
    counts = count_channel_tasks(calls)
    if counts.total() > MOST_TASKS:
        named = ", ".join(f"{count:,} {api}" for api, count in counts.items() if api)
        raise BadInput(
            f"granularity channel makes {counts.total():,} tasks ({named}), network {network}, at"
            f" most {MOST_TASKS:,} are possible, choose layer"
        )
    groups: list[CallGroup] = []
    for call in calls:
        if call.operation == "Conv2d":
            groups += convolution_groups(call)
        else:
            part = "GEMM" if call.operation == "Matmul" else ""
            groups.append(CallGroup("", "", (call,), part))
    return tuple(groups)


def count_channel_tasks(calls: Iterable[OperatorCall]) -> Counter[str]:
    """Count tasks by the call of CEDR's interface that each is; "" stands for what it has not."""
    counts: Counter[str] = Counter()
    for call in calls:
        if call.operation != "Conv2d":
            counts["GEMM" if call.operation == "Matmul" else ""] += 1
            continue
        weight = call.reads[1]
        assert weight is not None
        planes = prod(call.write.shape[:2])
        counts["CONV_2D"] += planes * weight.shape[1]
        summands = sum(view is not None for view in call.reads[2:])
        counts["ZIP"] += planes * (weight.shape[1] + summands)
    return counts


def convolution_groups(call: OperatorCall) -> Iterator[CallGroup]:
    """Yield the tasks of one convolution: each plane of the result, input after input."""
    images, outputs = call.write.shape[:2]
    for image in range(images):
        for output in range(outputs):
            yield from plane_groups(call, image, output)


def plane_groups(call: OperatorCall, image: int, output: int) -> Iterator[CallGroup]:
    """Yield the tasks of one plane of a result; the last sum applies the activation."""
    x, weight, bias, residual = (*call.reads, None, None)[:4]
    assert x is not None
    assert weight is not None
    target = plane(call.write, image, output)
    start = OperatorCall("Fill", call.value, (), target, (("number", 0.0),), module=call.module)
    summands: list[tuple[str, TensorView]] = []
    for number, channel in enumerate(input_channels(call, weight, output)):
        position = f"{output},{channel}"
        name = f"{call.value}_{image}_{output}_{channel}"
        partial = whole_view(TensorBuffer(name, "arena", target.shape))
        reads = (plane(x, image, channel), plane(weight, output, number))
        yield CallGroup("", "", (convolved(call, reads, partial),), f"CONV_2D {position}")
        summands.append((position, partial))
    if bias is not None:
        one_number = view_algebra.narrow(bias, 0, output, 1)
        summands.append((f"{output},bias", view_algebra.broadcast(one_number, target.shape)))
    if residual is not None:
        summands.append((f"{output},residual", plane(residual, image, output)))
    for number, (position, summand) in enumerate(summands):
        last = number == len(summands) - 1
        total = added(call, target, summand, call.activation if last else None)
        calls = (start, total) if number == 0 else (total,)
        yield CallGroup("", "", calls, f"ZIP {position}")


def input_channels(call: OperatorCall, weight: TensorView, output: int) -> range:
    """Return the channels of the input that one channel of the result reads."""
    groups = dict(call.attributes).get("groups", 1)
    assert isinstance(groups, int)
    first = output // (call.write.shape[1] // groups) * weight.shape[1]
    return range(first, first + weight.shape[1])


def convolved(
    call: OperatorCall, reads: tuple[TensorView, TensorView], write: TensorView
) -> OperatorCall:
    """Return the convolution of one plane by one kernel."""
    attributes = dict(call.attributes) | {"groups": 1}
    return replace(
        call,
        value=write.buffer.name,
        reads=reads,
        write=write,
        attributes=tuple(attributes.items()),
        activation=None,
        macs=write.elements * prod(reads[1].shape),
    )


def added(
    call: OperatorCall, target: TensorView, summand: TensorView, activation: Activation | None
) -> OperatorCall:
    """Return the sum of a plane and what is added to it, in its place."""
    attributes = (("arithmetic", "add"),)
    reads = (target, summand)
    return OperatorCall("Binary", call.value, reads, target, attributes, activation, call.module)


def plane(view: TensorView, first: int, second: int) -> TensorView:
    """Return one plane of maps [N, C, H, W] or of a weight [O, I, kh, kw]."""
    single = view_algebra.narrow(view_algebra.narrow(view, 0, first, 1), 1, second, 1)
    return replace(single, stride=dense_strides(single.shape)) if single.is_dense else single
