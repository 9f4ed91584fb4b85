"""The C++ text of a program: one readable function that lists its calls in forward order."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from nnstretch.export.cpp.memory import ArenaPlan
from nnstretch.export.cpp.program import (
    Activation,
    Attribute,
    CallGroup,
    CppProgram,
    Extents,
    OperatorCall,
    TensorBuffer,
    TensorView,
    whole_view,
)

ENUMERATIONS = {
    "arithmetic": "Arithmetic",
    "pooling": "Pooling",
    "reduction": "Reduction",
    "interpolation": "Interpolation",
}
DEFAULTS: Mapping[str, Attribute] = {
    "dilation": (1, 1),
    "groups": 1,
    "reversed": False,
    "align_corners": False,
    "logarithm": False,
    "divisor": 0,
}
"""What operations.hpp says where the text says nothing."""
FLOATS = frozenset({"scale", "number", "epsilon"})
_RESERVED_WORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
    char32_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
    constinit continue decltype default delete do double dynamic_cast else enum explicit export
    extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq
    nullptr operator or or_eq private protected public register reinterpret_cast requires return
    short signed sizeof static static_assert static_cast struct switch template this thread_local
    throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while
    xor xor_eq Activation AdaptivePool2d Arithmetic Binary ChannelAffine Conv2d ConvTranspose2d Copy
    Elementwise Fill Function Gather GroupNorm Interpolation LayerNorm Matmul Network Numbers Pool2d
    Pooling Reduce Reduction Resize2d Scalar Softmax View errno kArenaFloats kFingerprint linux main
    net network nnstretch operation std stderr stdin stdout unix weights
"""
RESERVED = frozenset(_RESERVED_WORDS.split())
"""Words of C++, names that the text around the calls uses, and macros of small letters."""
MACRO = re.compile(r"[A-Z][A-Z0-9_]+")
"""Names that a header may have taken for a macro."""
HEADER = """\
// {name}: {signature}
#pragma once

#include <memory>

#include "nnstretch/model.hpp"
#include "nnstretch/network.hpp"

// Several networks may be linked into one program: they differ by this name.
inline namespace network_{identifier} {{

// The network of this folder, with weights that were written for it.
// Throws nnstretch::Error where the weights belong to another network.
std::unique_ptr<nnstretch::Network> make_network(
    std::shared_ptr<const nnstretch::Weights> weights);

}}  // namespace network_{identifier}

// For nns_open of nnstretch/nnstretch.h.
extern "C" const nns_model* nns_model_{identifier}(void);
"""
SOURCE = """\
// {name}: {signature}
// Written by `nnstretch export --format cpp`. Calls stand in forward order, variables are named as
// PyTorch names values; offsets count elements of the arena.
#include "network.hpp"

using namespace nnstretch;

namespace {{

constexpr const char* kFingerprint =
    "{fingerprint}";
constexpr std::int64_t kArenaFloats = {arena};

}}  // namespace

inline namespace network_{identifier} {{

std::unique_ptr<Network> make_network(std::shared_ptr<const Weights> weights) {{
  weights->check_network(kFingerprint);
  auto network = std::make_unique<Network>("{name}", std::move(weights), kArenaFloats);
  Network& net = *network;
{body}
  net.finish();
  return network;
}}

}}  // namespace network_{identifier}

extern "C" const nns_model* nns_model_{identifier}(void) {{
  static const nns_model model{{make_network}};
  return &model;
}}
"""


@dataclass
class NameSpace:
    """C++ names of buffers, each given once."""

    names: dict[TensorBuffer, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def name_of(self, buffer: TensorBuffer) -> str:
        """Return the identifier of a buffer, a new one where its plain form is taken."""
        if buffer in self.names:
            return self.names[buffer]
        letters = re.sub(r"\W", "_", buffer.name, flags=re.ASCII)
        plain = re.sub(r"_+", "_", letters).strip("_") or "value"
        if plain[0].isdigit() or plain in RESERVED or MACRO.fullmatch(plain):
            plain = f"v_{plain}"
        name, number = plain, 2
        while name in self.taken:
            name, number = f"{plain}_{number}", number + 1
        self.taken.add(name)
        self.names[buffer] = name
        return name


def write_source(program: CppProgram, arena: ArenaPlan) -> tuple[str, str, bytes]:
    """Return header, source and the fingerprint that source and weights share."""
    names = NameSpace()
    lines = port_lines(program, names)
    declared: set[TensorBuffer] = set()
    for group in program.groups:
        lines += group_lines(group, arena, names, declared)
    body = "\n".join(f"  {line}" if line else "" for line in lines)
    fingerprint = hashlib.sha256(f"{program.name}\n{arena.size}\n{body}".encode())
    text = {
        "name": re.sub(r'["\\\n\r]', "_", program.name),
        "identifier": identifier(program.name),
        "signature": signature(program),
        "fingerprint": fingerprint.hexdigest(),
        "arena": max(arena.size, 1),
        "body": body,
    }
    return HEADER.format(**text), SOURCE.format(**text), fingerprint.digest()


def identifier(name: str) -> str:
    """Return a network's name as a part of C++ identifiers."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def signature(program: CppProgram) -> str:
    """Return inputs, outputs and work in one line."""
    inputs = ", ".join(shape_text(buffer.shape) for buffer in program.inputs)
    outputs = ", ".join(shape_text(buffer.shape) for buffer in program.outputs)
    return f"{inputs} -> {outputs}, {program.macs:,} multiply-accumulates"


def shape_text(shape: Extents) -> str:
    """Return a shape as 1x3x224x224."""
    return "x".join(map(str, shape)) or "scalar"


def port_lines(program: CppProgram, names: NameSpace) -> list[str]:
    """Return the declarations of inputs and outputs; a variable for those that calls touch."""
    touched = {view.buffer for view in program.views}
    lines: list[str] = []
    for kind, buffers in (("input", program.inputs), ("output", program.outputs)):
        for buffer in buffers:
            name = names.name_of(buffer)
            variable = f"const View {name} = " if buffer in touched else ""
            is_whole = kind == "input" and buffer.name in program.whole_inputs
            whole = ", Numbers::whole" if is_whole else ""
            port = f'net.{kind}("{quoted(buffer.name)}", {extents(buffer.shape)}{whole});'
            lines.append(variable + port)
    return lines


def group_lines(
    group: CallGroup, arena: ArenaPlan, names: NameSpace, declared: set[TensorBuffer]
) -> list[str]:
    """Return the lines of one task."""
    where = f', "{quoted(group.placement)}"' if group.placement else ""
    lines = ["", f'net.begin_task("{quoted(group.name)}"{where});']
    for call in group.calls:
        lines += ["", *call_lines(call, arena, names, declared)]
    return [line for number, line in enumerate(lines) if number != 2 or line]


def call_lines(
    call: OperatorCall, arena: ArenaPlan, names: NameSpace, declared: set[TensorBuffer]
) -> list[str]:
    """Return a call with a comment: module, operation, shapes and work."""
    sources = [view for view in call.reads if view is not None and view.buffer.storage != "weight"]
    shapes = ", ".join(shape_text(view.shape) for view in sources)
    work = f", {call.macs:,} MACs" if call.macs else ""
    place = f"{printable(call.module)}: " if call.module else ""
    lines = [f"// {place}{call.operation}, {shapes} -> {shape_text(call.write.shape)}{work}"]
    for view in call.views:
        if view.buffer.storage == "arena" and view.buffer not in declared:
            declared.add(view.buffer)
            offset = arena.offsets[view.buffer.name]
            lines.append(
                f"const View {names.name_of(view.buffer)} ="
                f" Network::arena({offset}, {extents(view.buffer.shape)});"
            )
    lines.append("{")
    lines.append(f"  {call.operation} operation;")
    for name, value in call.attributes:
        if value != DEFAULTS.get(name):
            lines.append(f"  operation.{name} = {attribute_text(name, value)};")
    if call.activation is not None:
        lines.append(f"  operation.activation = {activation_text(call.activation)};")
    lines.append(f'  net.call("{quoted(call.module or call.value)}", operation,')
    lines += read_lines(call, names)
    lines.append(f"           {view_text(call.write, names)});")
    lines.append("}")
    return lines


def read_lines(call: OperatorCall, names: NameSpace) -> list[str]:
    """Return what a call reads, one view a line; absent ones at the end are left out."""
    reads = list(call.reads)
    while reads and reads[-1] is None:
        reads.pop()
    texts = ["View{}" if view is None else view_text(view, names) for view in reads]
    lines = [f"            {text}," for text in texts]
    if not lines:
        return ["           {},"]
    lines[0] = f"           {{{lines[0].strip()}"
    lines[-1] = f"{lines[-1][:-1]}}},"
    return lines


def view_text(view: TensorView, names: NameSpace) -> str:
    """Return a view as C++: the name of its buffer where it is all of it."""
    buffer = view.buffer
    base = weight_text(buffer) if buffer.storage == "weight" else names.name_of(buffer)
    if view == whole_view(buffer):
        return base
    return f"Network::view({base}, {view.offset}, {extents(view.shape)}, {extents(view.stride)})"


def weight_text(buffer: TensorBuffer) -> str:
    """Return a weight as C++."""
    return f'net.weight("{quoted(buffer.name)}", {extents(buffer.shape)})'


def extents(shape: Extents) -> str:
    """Return numbers in braces."""
    return f"{{{', '.join(map(str, shape))}}}"


def quoted(text: str) -> str:
    """Return text as it stands inside a C++ string literal, whatever its letters."""
    letters = [f"\\{byte:03o}" if byte < 32 or byte > 126 else chr(byte) for byte in text.encode()]
    escaped = {"\\": "\\\\", '"': '\\"', "?": "\\?"}
    return "".join(escaped.get(letter, letter) for letter in letters)


def printable(text: str) -> str:
    """Return text of one line."""
    return re.sub(r"[^\x20-\x7e]", "_", text)


def attribute_text(name: str, value: Attribute) -> str:
    """Return an attribute's value as C++."""
    if isinstance(value, str):
        return f"{ENUMERATIONS[name]}::{value}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"{{{', '.join(attribute_text(name, item) for item in value)}}}"
    return float_text(value) if name in FLOATS else str(value)


def float_text(value: float) -> str:
    """Return the shortest decimal that gives the same float32."""
    text = str(np.float32(value))
    if text in ("inf", "-inf", "nan"):
        return {"inf": "HUGE_VALF", "-inf": "-HUGE_VALF", "nan": "NAN"}[text]
    return f"{text}F" if "." in text or "e" in text else f"{text}.0F"


def activation_text(activation: Activation) -> str:
    """Return an activation as C++."""
    numbers = f"{float_text(activation.a)}, {float_text(activation.b)}"
    return f"{{Function::{activation.function}, {numbers}}}"
