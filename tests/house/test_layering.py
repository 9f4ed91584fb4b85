"""Imports point one way: errors <- nouns <- structure <- verbs <- command line.

Heavy libraries stay in their verbs.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "nnstretch"
FILES = sorted(PACKAGE.rglob("*.py"))
VERBS = frozenset(
    {
        "capture",
        "profile",
        "predict",
        "stretch",
        "train",
        "export",
        "schedule",
        "run",
        "serve",
        "bench",
        "report",
        "study",
        "partition",
        "accelerate",
    }
)
NOUNS = frozenset(path.stem for path in PACKAGE.glob("*.py")) - {"__init__", "__main__"} | {
    "bundle",
    "chip",
    "files",
}
ALSO = {
    "run": {"schedule", "capture"},
    "serve": {"run", "schedule", "capture"},
    "bench": {"run", "schedule", "capture", "stretch", "export"},
    "stretch": {"capture"},
    "train": {"stretch", "capture"},
    "export": {"capture"},
    "profile": {"predict", "capture", "export", "run"},
    "partition": {"capture", "stretch", "export"},
    "accelerate": {"schedule", "capture"},
    "predict": {"accelerate"},
    "report": {"schedule"},
    "study": {"stretch", "capture", "train", "export", "schedule", "run", "report"},
}
"""The only verbs that may use another."""
MODULES = frozenset(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in FILES
)
HEAVY = frozenset(
    {
        *(
            "torch",
            "torchvision",
            "timm",
            "onnx",
            "onnxruntime",
            "lightning",
            "pytorch_lightning",
            "litdata",
            "scipy",
            "sklearn",
            "matplotlib",
        ),
        *("hypothesis", "pytest"),
        *("ai_edge_litert", "litert_torch", "ai_edge_quantizer", "openvino", "optuna"),
    }
)


def unit_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def may_import(unit: str) -> frozenset[str]:
    if unit == "errors":
        return frozenset()
    if unit in NOUNS:
        return NOUNS
    if unit == "structure":
        return NOUNS | {"structure"}
    if unit in VERBS:
        return NOUNS | {"structure", unit} | ALSO.get(unit, set())
    return NOUNS | VERBS | {"structure", "cli", unit}


def imported_modules(nodes: list[ast.AST]) -> set[str]:
    """Dotted names; `from package import module` counts as the module, where there is one."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (parts & MODULES) | ({node.module} if parts - MODULES else set())
    return found | {
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    }


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def units_imported_by(path: Path) -> set[str]:
    modules = imported_modules(nodes_of(path))
    return {module.split(".")[1] for module in modules if module.startswith("nnstretch.")} & (
        NOUNS | VERBS | {"structure", "cli", "testing"}
    )


@pytest.mark.slow
def test_imports_point_towards_the_nouns() -> None:
    wrong: list[str] = []
    for path in FILES:
        extra = units_imported_by(path) - may_import(unit_of(path))
        wrong += [f"{path.relative_to(PACKAGE)} imports {unit}" for unit in sorted(extra)]
    assert wrong == []


def test_nouns_and_structure_import_nothing_heavy() -> None:
    wrong: list[str] = []
    for path in FILES:
        if unit_of(path) in NOUNS | {"structure"}:
            heavy = {module.split(".")[0] for module in imported_modules(nodes_of(path))} & HEAVY
            wrong += [f"{path.relative_to(PACKAGE)} imports {library}" for library in sorted(heavy)]
    assert wrong == []


def loaded_by(statement: str) -> set[str]:
    """Heavy libraries in a fresh interpreter after one statement."""
    code = f"import sys; {statement}; print(*(m for m in {sorted(HEAVY)!r} if m in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import nnstretch",
        "import nnstretch.cli",
        (
            "import nnstretch.files.plan_yaml, nnstretch.structure.channel_groups,"
            " nnstretch.structure.kernel_fusion"
        ),
        "from nnstretch.stretch import NetworkAnalysis, lower, single_processor_plan",
        "import nnstretch.stretch.lowering.two_branch_plan, nnstretch.stretch.published.anynet",
        "import nnstretch.schedule",
        (
            "import nnstretch.pipeline, nnstretch.partition.connect, nnstretch.partition.partition,"
            " nnstretch.partition.build_manifest, nnstretch.partition.split_points"
        ),
    ],
)
def test_describing_and_searching_need_no_heavy_library(statement: str) -> None:
    assert not loaded_by(statement)


def test_running_needs_neither_torch_nor_lightning() -> None:
    assert not loaded_by("import nnstretch.run") & {"torch", "lightning", "pytorch_lightning"}


@pytest.mark.slow
def test_there_is_no_import_cycle() -> None:
    """Counting imports at the top of files; those inside functions run when everything is there."""
    graph: dict[str, set[str]] = {}
    for path in FILES:
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        graph[name] = {
            m
            for m in imported_modules(list(ast.parse(path.read_text(encoding="utf-8")).body))
            if m.startswith("nnstretch.")
        }
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"cycle {' -> '.join((*above, name))}"
        if name in graph and name not in done:
            for target in graph[name]:
                visit(target, (*above, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_pytest_and_hypothesis_are_imported_by_the_testing_package_only() -> None:
    for path in FILES:
        roots = {module.split(".")[0] for module in imported_modules(nodes_of(path))}
        assert unit_of(path) == "testing" or not roots & {"pytest", "hypothesis"}, path
