"""Measure the package as a reader meets it, and print one Markdown table.

    python scripts/code_metrics.py                   # nnstretch/
    python scripts/code_metrics.py FOLDER ...        # any packages, a column each
    python scripts/code_metrics.py --worst 10        # where each measure is worst
    python scripts/code_metrics.py --check           # exit 1 where a limit is broken

Needs the standard library, and ruff for the number of lines at 100 columns.
"""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACEHOLDERS = frozenset(
    [
        "found",
        "one",
        "other",
        "made",
        "own",
        "held",
        "given",
        "left",
        "rest",
        "there",
        "here",
        "who",
    ]
)
VAGUE = re.compile(r"(Of|Who|What|Those|The same|Where|Whether|By|As|On|In|From|How)\b")
PRAGMA = re.compile(r"  # (type: ignore|noqa).*$")
"""Comments for tools, which ruff leaves out of a line's width."""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
NESTED = "comprehensions of more than one for, per 1000 lines"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LIMITS = {
    "lines at 100 columns": 48_000,
    "lines beyond 100 columns": 0,
    "AST nodes a function, median": 45,
    "comprehensions per 1000 lines": 25,
    NESTED: 0,
    "functions with placeholder locals, %": 2,
    "class names with more than one meaning": 0,
    "import cycles": 0,
    "files in the largest folder": 16,
    "docstrings that do not stand alone": 0,
}
FLOORS = {
    "public functions with a docstring, %": 95,
    "public functions that raise and say so, %": 90,
}


@dataclass
class Measures:
    """Numbers by their row in the table, and the places where each is worst."""

    rows: dict[str, float] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True)
class Function:
    """A function with the file that defines it."""

    path: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    public: bool

    @property
    def place(self) -> str:
        return f"{self.path}:{self.node.lineno} {self.node.name}"

    @property
    def body_lines(self) -> int:
        """Lines from the first statement after the docstring to the last."""
        body = self.node.body[1:] if ast.get_docstring(self.node) else self.node.body
        return body[-1].end_lineno - body[0].lineno + 1 if body else 0

    @property
    def ast_nodes(self) -> int:
        """Nodes of the statements of its body, the docstring left out."""
        body = self.node.body[1:] if ast.get_docstring(self.node) else self.node.body
        return sum(1 for statement in body for _ in ast.walk(statement))

    @property
    def placeholder_locals(self) -> set[str]:
        nodes = list(ast.walk(self.node))
        variables = {node.id for node in nodes if isinstance(node, ast.Name)}
        return (
            variables | {node.arg for node in nodes if isinstance(node, ast.arg)}
        ) & PLACEHOLDERS

    @property
    def raises(self) -> bool:
        return any(isinstance(n, ast.Raise) and n.exc is not None for n in ast.walk(self.node))


def measure(package: Path) -> Measures:
    """Return every measure of a package."""
    sources = {
        str(path.relative_to(package.parent)): path.read_text(encoding="utf-8")
        for path in sorted(package.rglob("*.py"))
        if not {"tests", "test", "_tests"} & set(path.relative_to(package).parts)
    }
    trees = {path: ast.parse(text) for path, text in sources.items()}
    functions = [f for path, tree in trees.items() for f in functions_in(path, tree)]
    measures = Measures()
    measure_lines(package, sources, measures)
    measure_functions(functions, measures)
    measure_docstrings(functions, measures)
    measure_comprehensions(trees, measures)
    measure_house(package, trees, measures)
    return measures


def functions_in(path: str, tree: ast.Module) -> Iterator[Function]:
    """Yield functions and methods; nested functions and private classes are not public."""

    def visit(node: ast.AST, public: bool) -> Iterator[Function]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, FUNCTIONS):
                yield Function(path, child, public and not child.name.startswith("_"))
                yield from visit(child, False)
            elif isinstance(child, ast.ClassDef):
                yield from visit(child, public and not child.name.startswith("_"))
            else:
                yield from visit(child, public)

    return visit(tree, True)


def measure_lines(package: Path, sources: dict[str, str], measures: Measures) -> None:
    counts = {path: text.count("\n") for path, text in sources.items()}
    measures.rows["files"] = len(sources)
    measures.rows["lines"] = sum(counts.values())
    measures.rows["lines at 100 columns"] = formatted_lines(package)
    measures.rows["lines per file, median"] = statistics.median(counts.values())
    measures.rows["lines per file, max"] = max(counts.values())
    measures.rows["files above 300 lines"] = sum(count > 300 for count in counts.values())
    measures.places["files above 300 lines"] = [
        f"{path}: {count}"
        for path, count in sorted(counts.items(), key=lambda p: -p[1])
        if count > 300
    ]
    for path, text in sources.items():
        for number, line in enumerate(text.splitlines(), 1):
            line = PRAGMA.sub("", line)
            if len(line) > 100:
                measures.places["lines beyond 100 columns"].append(f"{path}:{number} ({len(line)})")
    measures.rows["lines beyond 100 columns"] = len(measures.places["lines beyond 100 columns"])


def formatted_lines(package: Path) -> int:
    """Return how many lines `ruff format` makes at 100 columns."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / package.name
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
        ruff = Path(sys.executable).with_name("ruff")
        subprocess.run(
            [str(ruff), "format", "-q", "--isolated", "--line-length", "100", str(copy)], check=True
        )
        return sum(path.read_text(encoding="utf-8").count("\n") for path in copy.rglob("*.py"))


def measure_functions(functions: list[Function], measures: Measures) -> None:
    bodies = sorted(f.body_lines for f in functions)
    nodes = sorted(f.ast_nodes for f in functions)
    rows = measures.rows
    rows["functions"] = len(functions)
    rows["function body lines, median"] = statistics.median(bodies)
    rows["function body lines, p90"] = bodies[int(0.9 * len(bodies))]
    rows["function body lines, max"] = bodies[-1]
    rows["functions above 40 lines"] = sum(count > 40 for count in bodies)
    rows["AST nodes a function, median"] = statistics.median(nodes)
    rows["AST nodes a function, p90"] = nodes[int(0.9 * len(nodes))]
    largest = sorted(functions, key=lambda f: -f.ast_nodes)
    measures.places["functions above 40 lines"] = [
        f"{f.place}: {f.body_lines}" for f in functions if f.body_lines > 40
    ]
    measures.places["AST nodes a function, p90"] = [f"{f.place}: {f.ast_nodes}" for f in largest]
    vague = [f for f in functions if f.placeholder_locals]
    rows["functions with placeholder locals, %"] = percent(len(vague), len(functions))
    measures.places["functions with placeholder locals, %"] = [
        f"{f.place}: {' '.join(sorted(f.placeholder_locals))}" for f in vague
    ]


def measure_docstrings(functions: list[Function], measures: Measures) -> None:
    public = [f for f in functions if f.public]
    silent = [f for f in public if not ast.get_docstring(f.node)]
    raising = [f for f in public if f.raises]
    unsaid = [f for f in raising if not re.search(r"[Rr]aise", ast.get_docstring(f.node) or "")]
    riddles = [f for f in functions if VAGUE.match(ast.get_docstring(f.node) or "")]
    measures.rows["public functions with a docstring, %"] = percent(
        len(public) - len(silent), len(public)
    )
    measures.rows["public functions that raise and say so, %"] = percent(
        len(raising) - len(unsaid), len(raising)
    )
    measures.rows["docstrings that do not stand alone"] = len(riddles)
    measures.places["public functions with a docstring, %"] = [f.place for f in silent]
    measures.places["public functions that raise and say so, %"] = [f.place for f in unsaid]
    measures.places["docstrings that do not stand alone"] = [f.place for f in riddles]


def measure_comprehensions(trees: dict[str, ast.Module], measures: Measures) -> None:
    nested: list[str] = []
    per_file: Counter[str] = Counter()
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, COMPREHENSIONS):
                per_file[path] += 1
                if len(node.generators) > 1:
                    nested.append(f"{path}:{node.lineno}")
    thousands = measures.rows["lines at 100 columns"] / 1000
    measures.rows["comprehensions per 1000 lines"] = round(per_file.total() / thousands, 1)
    measures.rows[NESTED] = round(len(nested) / thousands, 1)
    measures.places[NESTED] = nested
    measures.places["comprehensions per 1000 lines"] = [
        f"{path}: {count}" for path, count in per_file.most_common()
    ]


def measure_house(package: Path, trees: dict[str, ast.Module], measures: Measures) -> None:
    classes: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(path)
    twice = {name: paths for name, paths in classes.items() if len(paths) > 1}
    measures.rows["class names with more than one meaning"] = len(twice)
    measures.places["class names with more than one meaning"] = [
        f"{name}: {', '.join(paths)}" for name, paths in twice.items()
    ]
    cycles = import_cycles(package, trees)
    measures.rows["import cycles"] = len(cycles)
    measures.places["import cycles"] = [" <-> ".join(cycle) for cycle in cycles]
    folders = Counter(str(Path(path).parent) for path in trees)
    measures.rows["files in the largest folder"] = folders.most_common(1)[0][1]
    measures.places["files in the largest folder"] = [
        f"{name}: {count}" for name, count in folders.most_common()
    ]


def import_cycles(package: Path, trees: dict[str, ast.Module]) -> list[list[str]]:
    """Return groups of modules that import each other at the top of files, for types too."""
    names = {
        path: ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__") for path in trees
    }
    modules = set(names.values())
    graph: dict[str, set[str]] = {}
    for path, tree in trees.items():
        graph[names[path]] = {m for node in top_level(tree) for m in imported(node, modules)} - {
            names[path]
        }
    reach = {name: reachable(name, graph) for name in graph}
    groups = {
        frozenset({name, *(m for m in reach[name] if name in reach[m])})
        for name in graph
        if name in reach[name]
    }
    return [sorted(group) for group in sorted(groups, key=min)]


def top_level(node: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes outside functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, FUNCTIONS):
            yield child
            yield from top_level(child)


def imported(node: ast.AST, modules: set[str]) -> set[str]:
    """Return the package's modules that an import statement loads by name."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & modules
    if isinstance(node, ast.ImportFrom) and node.module:
        inner = {f"{node.module}.{alias.name}" for alias in node.names}
        return (inner & modules) | ({node.module} & modules if inner - modules else set())
    return set()


def reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    stack = list(graph[start])
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            stack.extend(graph.get(name, ()))
    return seen


def percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 1) if whole else 0.0


def broken_limits(rows: dict[str, float]) -> list[str]:
    """Return a line for each limit that a package breaks."""
    above = [
        f"{name}: {rows[name]:g}, at most {limit}"
        for name, limit in LIMITS.items()
        if rows[name] > limit
    ]
    below = [
        f"{name}: {rows[name]:g}, at least {limit}"
        for name, limit in FLOORS.items()
        if rows[name] < limit
    ]
    return above + below


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "packages",
        type=Path,
        nargs="*",
        default=[ROOT / "nnstretch"],
        help="folders of packages; of several, a column each",
    )
    parser.add_argument(
        "--worst", type=int, default=0, metavar="N", help="list the N worst places of each measure"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 where a limit is broken")
    return parser


def limit_of(name: str) -> str:
    """Return the printed form of a measure's limit."""
    if name in LIMITS:
        return f"<= {LIMITS[name]:,}"
    return f">= {FLOORS[name]}" if name in FLOORS else ""


def print_columns(packages: list[Path]) -> None:
    """Print the measures of several packages side by side."""
    columns = [measure(package).rows for package in packages]
    print(f"| measure | {' | '.join(package.name for package in packages)} |")
    print("|---" * (len(packages) + 1) + "|")
    for name in columns[0]:
        print(f"| {name} | {' | '.join(f'{rows[name]:,}' for rows in columns)} |")


def main() -> int:
    args = arguments().parse_args()
    if len(args.packages) > 1:
        print_columns([package.resolve() for package in args.packages])
        return 0
    measures = measure(args.packages[0].resolve())
    print("| measure | value | limit |\n|---|---|---|")
    for name, value in measures.rows.items():
        print(f"| {name} | {value:,} | {limit_of(name)} |")
    for name, places in measures.places.items():
        if args.worst and places:
            print(f"\n{name}:", *places[: args.worst], sep="\n  ")
    lines = broken_limits(measures.rows)
    if args.check and lines:
        print("\nLimits that are broken:", *lines, sep="\n  ")
    return 1 if args.check and lines else 0


if __name__ == "__main__":
    sys.exit(main())
