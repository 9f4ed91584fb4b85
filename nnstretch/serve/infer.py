"""Infer requests and answers of the Open Inference Protocol, with its binary tensor extension.

A request is JSON, behind which the bytes of tensors may stand; the header
Inference-Header-Content-Length then says how long the JSON is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnstretch.bundle.manifest import Manifest, Port
from nnstretch.bundle.pipeline_view import torch_spec
from nnstretch.errors import BadInput, closest, one_line
from nnstretch.files.json_text import parse_json
from nnstretch.files.limits import shorten
from nnstretch.serve.number_lists import ShortenedJson, without_long_lists
from nnstretch.serve.tensors import datatype_of, json_of_tensor, tensor_of_bytes, tensor_of_json

LONGEST_ID = 1000
LEVELS = 100
"""Levels of `priority`; 1 goes first."""
DEFAULT_LEVEL = 50
"""That of requests without one."""
LONGEST_TIMEOUT_US = 1 << 53
LONGEST_JSON_BYTES = 1 << 20
"""Of a request, without long lists of numbers: what is parsed at once, before all else goes on."""
KEYS = {
    "request": ("id", "parameters", "inputs", "outputs"),
    "input": ("name", "shape", "datatype", "parameters", "data"),
    "output": ("name", "parameters"),
    "parameters of request": ("timeout", "priority", "binary_data_output"),
    "parameters of input": ("binary_data_size",),
    "parameters of output": ("binary_data",),
}


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """An output that a client wants, and how."""

    name: str
    binary: bool


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request, checked."""

    inputs: Mapping[str, np.ndarray]
    outputs: tuple[WantedOutput, ...]
    id: str = ""
    timeout_us: int | None = None
    """None for the application's own deadline."""
    level: int = 0
    """Of priority; 0 for the application's own."""


@dataclass(frozen=True, slots=True)
class InferAnswer:
    """The body of an answer: JSON, and bytes of tensors behind it."""

    parts: tuple[bytes | memoryview, ...]
    header_bytes: int | None
    """Length of the JSON where bytes follow it."""

    @property
    def size_bytes(self) -> int:
        """Return the length of the body."""
        return sum(len(part) for part in self.parts)


def decode_request(
    body: bytes | bytearray, header_bytes: int | None, manifest: Manifest
) -> InferRequest:
    """Decode a request for a network; arrays are views of the body. Raises BadInput.

    `header_bytes`: length of the JSON in front of tensors, None where all of the body is JSON.
    """
    if header_bytes is not None and not 0 <= header_bytes <= len(body):
        raise BadInput(f"Inference-Header-Content-Length is {header_bytes}, the body {len(body)}")
    size = len(body) if header_bytes is None else header_bytes
    view = memoryview(body)
    shortened = without_long_lists(bytes(view[:size]))
    if len(shortened.text) > LONGEST_JSON_BYTES:
        raise BadInput(
            f"the request has {len(shortened.text)} bytes of JSON beside long lists of numbers,"
            f" there may be {LONGEST_JSON_BYTES}"
        )
    try:
        content = parse_json(shortened.text)
    except ValueError as error:
        raise BadInput(f"the request is not JSON, {one_line(error)[:200]}") from None
    check_object(content, "request")
    parameters = parameters_of(content, "request")
    inputs = decode_inputs(content, shortened, view[size:], manifest)
    binary = flag_of(parameters, "binary_data_output")
    return InferRequest(
        inputs,
        decode_outputs(content, manifest, binary),
        id_of(content),
        timeout_of(parameters),
        whole_of(parameters, "priority", LEVELS),
    )


def check_object(value: object, what: str) -> None:
    """Check that a value is an object with known keys. Raises BadInput naming the first other."""
    if type(value) is not dict:
        raise BadInput(f"{what} is {shorten(value)}, needed is an object")
    known = KEYS[what]
    for key in value:
        if key not in known:
            near = closest(key[:40], list(known))
            raise BadInput(f"{what} has {shorten(key)}, known are {', '.join(known)}{near}")


def parameters_of(content: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    """Return the parameters of a request, an input or an output."""
    parameters = content.get("parameters", {})
    check_object(parameters, f"parameters of {what}")
    return parameters  # type: ignore[no-any-return]


def flag_of(parameters: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """Return a parameter that is true or false. Raises BadInput for anything else."""
    value = parameters.get(name, default)
    if type(value) is not bool:
        raise BadInput(f"{name} is {shorten(value)}, needed is true or false")
    return value


def whole_of(parameters: Mapping[str, Any], name: str, most: int) -> int:
    """Return a parameter that counts from 0 to `most`. Raises BadInput for anything else."""
    value = parameters.get(name, 0)
    if type(value) is not int or not 0 <= value <= most:
        raise BadInput(f"{name} is {shorten(value)}, needed is a whole number from 0 to {most}")
    return value


def timeout_of(parameters: Mapping[str, Any]) -> int | None:
    """Return the time that a request has, us; None where it says none, or 0."""
    return whole_of(parameters, "timeout", LONGEST_TIMEOUT_US) or None


def id_of(content: Mapping[str, Any]) -> str:
    """Return the client's name of a request. Raises BadInput for what is no short text."""
    name = content.get("id", "")
    if type(name) is not str or len(name) > LONGEST_ID:
        raise BadInput(f"id is {shorten(name)}, needed is a text of at most {LONGEST_ID} letters")
    return name


def items_of(content: Mapping[str, Any], key: str, what: str) -> list[dict[str, Any]]:
    """Return the inputs or outputs of a request, each once. Raises BadInput."""
    items = content.get(key, [])
    if type(items) is not list:
        raise BadInput(f"{key} is {shorten(items)}, needed is a list")
    names: set[str] = set()
    for item in items:
        check_object(item, what)
        name = item.get("name")
        if type(name) is not str:
            raise BadInput(f"name of an {what} is {shorten(name)}, needed is a text")
        if name in names:
            raise BadInput(f"{what} {shorten(name)} is there twice, each is there once")
        names.add(name)
    return items


def decode_inputs(
    content: Mapping[str, Any], shortened: ShortenedJson, data: memoryview, manifest: Manifest
) -> dict[str, np.ndarray]:
    """Return the arrays of a request, by name. Raises BadInput for any that do not fit."""
    ports = {port.name: port for port in manifest.inputs}
    arrays: dict[str, np.ndarray] = {}
    used = 0
    for item in items_of(content, "inputs", "input"):
        port = port_of(item["name"], ports, "input")
        check_declared(item, port)
        size = binary_size_of(item, len(data) - used)
        if size is None:
            arrays[port.name] = tensor_of_json(port, shortened.data_of(item))
        else:
            arrays[port.name] = tensor_of_bytes(port, data[used : used + size])
            used += size
    if used != len(data):
        raise BadInput(f"{len(data)} bytes behind the JSON, its inputs have {used}")
    for name in ports:
        if name not in arrays:
            raise BadInput(f"input {name} is missing, the model has {', '.join(ports)}")
    return arrays


def port_of(name: str, ports: Mapping[str, Port], what: str) -> Port:
    """Return the port of a name. Raises BadInput, which names the closest, for any other."""
    if name not in ports:
        near = closest(name[:100], list(ports))
        raise BadInput(f"unknown {what} {shorten(name)}, there are {', '.join(ports)}{near}")
    return ports[name]


def check_declared(item: Mapping[str, Any], port: Port) -> None:
    """Check that shape and type of an input are the port's. Raises BadInput."""
    shape, needed = item.get("shape"), list(torch_spec(port).shape)
    if type(shape) is not list or shape != needed or any(type(size) is not int for size in shape):
        raise BadInput(f"shape of input {port.name} is {shorten(shape)}, needed is {needed}")
    datatype = item.get("datatype")
    if datatype != datatype_of(port):
        raise BadInput(
            f"datatype of input {port.name} is {shorten(datatype)}, needed is {datatype_of(port)}"
        )


def binary_size_of(item: Mapping[str, Any], most: int) -> int | None:
    """Return how many bytes an input has, None where its numbers are JSON. Raises BadInput."""
    size = parameters_of(item, "input").get("binary_data_size")
    if size is None:
        return None
    name = item["name"]
    if "data" in item:
        raise BadInput(f"input {shorten(name)} has data and binary_data_size, needed is one")
    if type(size) is not int or size < 0:
        raise BadInput(f"binary_data_size of {shorten(name)} is {shorten(size)}, needed are bytes")
    if size > most:
        raise BadInput(
            f"binary_data_size of {shorten(name)} is {shorten(size)}, the body has {most} more"
        )
    return size


def decode_outputs(
    content: Mapping[str, Any], manifest: Manifest, binary: bool
) -> tuple[WantedOutput, ...]:
    """Return the outputs that a client wants, all where it names none. Raises BadInput."""
    ports = {port.name: port for port in manifest.outputs}
    wanted: list[WantedOutput] = []
    for item in items_of(content, "outputs", "output"):
        port = port_of(item["name"], ports, "output")
        as_binary = flag_of(parameters_of(item, "output"), "binary_data", binary)
        wanted.append(WantedOutput(port.name, as_binary))
    return tuple(wanted) or tuple(WantedOutput(name, binary) for name in ports)


def encode_answer(
    model: str, request: InferRequest, arrays: Mapping[str, np.ndarray], ports: Sequence[Port]
) -> InferAnswer:
    """Encode the outputs that were wanted. Raises BadInput for numbers that JSON has not."""
    datatypes = {port.name: datatype_of(port) for port in ports}
    outputs: list[str] = []
    buffers: list[memoryview] = []
    for wanted in request.outputs:
        array = np.ascontiguousarray(arrays[wanted.name])
        shape = list(arrays[wanted.name].shape)
        row: dict[str, Any] = {"name": wanted.name, "datatype": datatypes[wanted.name]}
        row["shape"] = shape
        if wanted.binary:
            row["parameters"] = {"binary_data_size": array.nbytes}
            buffers.append(array.reshape(-1).view(np.uint8).data)
            outputs.append(json.dumps(row))
        else:
            outputs.append(
                f'{json.dumps(row)[:-1]}, "data": {json_of_tensor(wanted.name, array)}}}'
            )
    content: dict[str, Any] = {"model_name": model, "model_version": "1"}
    if request.id:
        content["id"] = request.id
    head = json.dumps(content)[:-1]
    text = f'{head}, "outputs": [{", ".join(outputs)}]}}'.encode()
    return InferAnswer((text, *buffers), len(text) if buffers else None)
