"""Every public function, class, method and constant of the package has a use outside tests.

A use is the name in code of the package, a script or an example, outside of its own definition, or
a word of a page. Names are compared, not what they refer to: a dead name that another shares is
not found.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nnstretch

ROOT = Path(__file__).parents[2]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
CALLED_FROM_OUTSIDE = re.compile(
    r"on_\w+|(training|validation)_step|configure_\w+"  # Lightning
    r"|(load|save|remove)_checkpoint|teardown|state_dict|load_state_dict"
    r"|pipe_(in|out)put|get_(mod_idx|config)|connect"  # the published pipeline configuration
    r"|optimizer_step"  # Lightning
    r"|main|arguments|show"  # what the command line looks up in its modules
    r"|render_str|repr_int|construct_mapping|compose_node|run_node|get_code"  # of libraries and importlib
    r"|connection_(made|lost)|(data|eof)_received|(pause|resume)_writing"  # of asyncio
    r"|send_400_response|capture_signals|startup|timeout_keep_alive_handler"  # of uvicorn
)


@dataclass(frozen=True, slots=True)
class Definition:
    name: str
    path: Path
    first_line: int
    last_line: int

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.name}"


def definitions(path: Path, body: list[ast.stmt], methods: bool = False) -> Iterator[Definition]:
    """Yield public definitions of a module, or methods of its public classes."""
    for node in body:
        names: list[str] = []
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            names = [node.name]
        elif isinstance(node, ast.Assign) and not methods:
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and not methods and isinstance(node.target, ast.Name):
            names = [node.target.id]
        for name in names:
            if not name.startswith("_"):
                yield Definition(name, path, node.lineno, node.end_lineno or node.lineno)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from definitions(path, node.body, methods=True)


def uses(path: Path) -> Iterator[tuple[str, int]]:
    """Yield names that a file reads or refers to in strings, with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute):
            yield node.attr, node.lineno
        elif isinstance(node, ast.alias) and node.asname not in (None, node.name):
            yield node.name, node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for word in re.findall(r"\w+", node.value) if len(node.value) < 60 else ():
                yield word, node.lineno


def unused() -> list[str]:
    """Return definitions without a use."""
    package = sorted((ROOT / "nnstretch").rglob("*.py"))
    programs = [*(ROOT / "scripts").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    places: dict[str, list[tuple[Path, int]]] = defaultdict(list)
    for path in (*package, *programs):
        for name, line in uses(path):
            places[name].append((path, line))
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    words = set(re.findall(r"\w+", " ".join(page.read_text(encoding="utf-8") for page in pages)))
    words |= set(nnstretch.__all__)
    lines = []
    for path in package:
        if path.relative_to(ROOT / "nnstretch").parts[0] == "testing":
            continue
        for item in definitions(path, ast.parse(path.read_text(encoding="utf-8")).body):
            inside = range(item.first_line, item.last_line + 1)
            outside = [p for p in places[item.name] if p[0] != path or p[1] not in inside]
            known = item.name in words or CALLED_FROM_OUTSIDE.fullmatch(item.name)
            if not outside and not known:
                lines.append(str(item))
    return lines


def test_everything_public_is_used() -> None:
    assert sorted(unused()) == []
