"""Checks of a torch.export file, so that loading it runs no code of the file.

`torch.export.load` trusts its file. Read with torch 2.15, it
- unpickles freely: tensors marked `use_pickle`, opaque and custom objects, and sample inputs and
  the weights of the older formats once the safe unpickler has refused them;
- evaluates every symbolic size with `sympy.sympify`, that is with Python's `eval`;
- loads compiled libraries (`data/aotinductor`);
- writes the names of values into Python source that it compiles;
- looks operators up by any dotted path under `torch`.
So the parts are checked first, by the same zip and JSON readers that load them afterwards, and from
the same bytes. A file is refused that carries pickles other than tensors, objects or compiled code,
and one whose sizes are more than whole-number arithmetic, whose names are no identifiers or whose
operators are not PyTorch's own. The remainder cannot name anything else to call. Older formats
(before torch 2.8) are refused altogether.
"""

from __future__ import annotations

import ast
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nnstretch.errors import BrokenFile, CannotCapture, UnsupportedOp

MODEL_RECORD = "models/model.json"
SAMPLES_RECORD = "data/sample_inputs/model.pt"
ALLOWED_RECORD = re.compile(
    r"models/model\.json|data/(weights|constants)/"
    r"(weight_\d+|tensor_\d+|model_(weights|constants)_config\.json)"
    r"|data/sample_inputs/model\.pt|archive_format|archive_version|byteorder|\.data/\w+"
    r"|\.format_version|\.storage_alignment|extra/.*"
)
"""Records that hold numbers, JSON or a version."""
ALLOWED_OPERATOR = re.compile(
    r"torch\.ops\.(aten|torchvision)\.\w+\.\w+"
    r"|_operator\.(add|sub|mul|floordiv|mod|neg|truediv|eq|ne|le|lt|ge|gt|getitem)"
    r"|torch\.sym_\w+"
)
FILE_READING_OPERATOR = "torch.ops.aten.from_file."
IDENTIFIER = re.compile(r"([A-Za-z_]\w*)?", re.ASCII)
NAME_KEYS = frozenset({"name", "as_name", "forward_arg_names"})
NAME_TABLE_KEYS = frozenset(
    {"tensor_values", "sym_int_values", "sym_float_values", "sym_bool_values", "custom_obj_values"}
)
"""Their keys are names."""
_SIZE_FUNCTION_NAMES = """
    Symbol Integer Rational Float Add Mul Mod Min Max FloorDiv ModularIndexing CleanDiv CeilToInt
    FloorToInt IntTrueDiv PythonMod TruncToInt
"""
SIZE_FUNCTIONS = frozenset(_SIZE_FUNCTION_NAMES.split())
"""Functions that sizes may call. No power: a few characters of it can take all memory."""
ALLOWED_CONTAINERS = (None, "builtins.tuple", "builtins.list", "builtins.dict")
MAX_NUMBER_DIGITS = 18
LITERAL_PATTERNS = {"Symbol": r"[A-Za-z]\w*", "Float": r"-?\d{1,18}(\.\d{1,18})?"}
"""Functions of one literal, and the text that it may be."""


def check_archive(data: bytes, path: Path) -> None:
    """Check that loading would do no more than read numbers. Raises where it would."""
    from torch.export.pt2_archive import PT2ArchiveReader

    archive = PT2ArchiveReader(io.BytesIO(data))
    records = archive.get_file_names()
    for record in records:
        if not ALLOWED_RECORD.fullmatch(record):
            raise UnsupportedOp(
                f"unsupported record {record}, {path}, only a program, its numbers and versions are"
                " read"
            )
    if MODEL_RECORD not in records:
        raise BrokenFile(f"broken torch.export file, {path}, it holds no {MODEL_RECORD}")
    if SAMPLES_RECORD in records:
        check_samples(archive.read_bytes(SAMPLES_RECORD), path)
    for record in records:
        if record.endswith(".json"):
            check_json(json.loads(archive.read_bytes(record)), f"{record} of {path}")


def check_samples(pickled: bytes, path: Path) -> None:
    """Check the sample inputs with the safe unpickler; torch.export then tries no other.

    Raises BrokenFile when they are no inputs; UnsupportedOp when they hold more than tensors.
    """
    if not pickled:
        return
    try:
        samples = torch.load(io.BytesIO(pickled), weights_only=True)
    except Exception as error:
        # Broad on purpose: whatever the safe unpickler raises, it has refused.
        raise UnsupportedOp(
            f"unsupported record {SAMPLES_RECORD}, {path}, its pickle holds more than tensors"
        ) from error
    if not isinstance(samples, (tuple, dict)):
        raise BrokenFile(
            f"broken torch.export file, {path}, {SAMPLES_RECORD} holds a {type(samples).__name__},"
            " not inputs"
        )


def check_json(content: Any, where: str) -> None:
    """Check that the program's JSON asks for numbers, tensors and known operators only.

    Raises UnsupportedOp, CannotCapture or BrokenFile where it asks for more.
    """
    for key, value in iterate_pairs(content):
        if key in ("use_pickle", "path_name"):
            check_storage(key, value, where)
        elif key in ("as_operator", "as_graph", "as_custom_obj") and value is not None:
            raise CannotCapture(
                f"cannot capture {where}, an argument is {key.removeprefix('as_')}, control flow or"
                " an object"
            )
        elif key == "expr_str":
            check_size_expression(value, where)
        elif key == "nodes":
            check_operators(value, where)
        elif key in NAME_KEYS or key in NAME_TABLE_KEYS:
            check_names(value, where)
        elif key in ("in_spec", "out_spec") and isinstance(value, str):
            check_structure(json.loads(value), where)


def check_storage(key: str, value: Any, where: str) -> None:
    """Check that a tensor is stored as plain numbers. Raises UnsupportedOp when it is not."""
    if key == "use_pickle" and value:
        raise UnsupportedOp(
            f"unsupported tensor in {where}, it is pickled, only plain numbers are read"
        )
    if key == "path_name" and not re.fullmatch(r"(weight|tensor)_\d+", str(value)):
        raise UnsupportedOp(f"unsupported object {value!r} in {where}, only tensors are read")


def check_names(names: Any, where: str) -> None:
    """Check that names are identifiers. Raises UnsupportedOp when one is not."""
    for name in names if isinstance(names, (list, dict)) else [names]:
        if name is not None and not (isinstance(name, str) and IDENTIFIER.fullmatch(name)):
            raise BrokenFile(
                f"broken name {str(name)[:80]!r} in {where}, a value's name is letters, digits and"
                " underscores"
            )


def iterate_pairs(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key and value, at any depth."""
    stack = [content]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield from item.items()
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def check_operators(nodes: Any, where: str) -> None:
    """Check that only known operators are called. Raises UnsupportedOp when another one is."""
    for node in nodes:
        target = str(node.get("target"))
        if target.startswith("torch.ops.higher_order."):
            raise CannotCapture(
                f"cannot capture {where}, {target}, control flow inside the network"
            )
        if not ALLOWED_OPERATOR.fullmatch(target) or target.startswith(FILE_READING_OPERATOR):
            raise UnsupportedOp(
                f"unsupported operator {target!r} in {where}, only PyTorch's own tensor operators"
                " are read"
            )


def check_size_expression(text: Any, where: str) -> None:
    """Check that a size, which PyTorch evaluates as Python, is whole-number arithmetic of symbols.

    Raises UnsupportedOp when the size is more than arithmetic; BrokenFile when it cannot be parsed.
    """
    try:
        if not isinstance(text, str) or not is_arithmetic(ast.parse(text, mode="eval").body):
            raise UnsupportedOp(
                f"unsupported size {str(text)[:80]!r} in {where}, only arithmetic of whole numbers"
                " is read"
            )
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BrokenFile(
            f"broken size {str(text)[:80]!r} in {where}, {type(error).__name__}"
        ) from error


def is_arithmetic(tree: ast.expr) -> bool:
    """Return whether a symbolic expression is made of numbers and arithmetic only."""
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return is_arithmetic(tree.operand)
    if isinstance(tree, ast.Constant):
        return type(tree.value) is int and len(str(tree.value)) <= MAX_NUMBER_DIGITS
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        return False
    if tree.func.id not in SIZE_FUNCTIONS or not all(map(is_plain_keyword, tree.keywords)):
        return False
    if tree.func.id in LITERAL_PATTERNS:
        pattern = LITERAL_PATTERNS[tree.func.id]
        literals = [str(a.value) for a in tree.args if isinstance(a, ast.Constant)]
        return len(tree.args) == len(literals) == 1 and bool(re.fullmatch(pattern, literals[0]))
    return all(is_arithmetic(argument) for argument in tree.args)


def is_plain_keyword(keyword: ast.keyword) -> bool:
    """Return whether a keyword argument is a named number or truth value."""
    if keyword.arg is None or not isinstance(keyword.value, ast.Constant):
        return False
    return isinstance(keyword.value.value, (bool, int))


def check_structure(content: Any, where: str) -> None:
    """Check that inputs and outputs are in plain containers; other types name classes to build.

    Raises UnsupportedOp when a container is not a tuple, list or dict.
    """
    for key, value in iterate_pairs(content):
        if key == "type" and value not in ALLOWED_CONTAINERS:
            raise UnsupportedOp(
                f"unsupported container {str(value)[:80]!r} in {where}, only tuple, list and dict"
                " are read"
            )
        if key == "context" and value is not None:
            check_names(json.loads(value), where)
