"""Show what a network is made of: operators, cuts (possible meeting points), units and repeats.

A cut is named by the outermost module whose output it is; the last is `output`. A unit marked as a
repeat may be dropped when a branch is made shallower. A network with several inputs or outputs has
no cut; its modules are listed instead.

MACs count convolutions and linear layers as pycls does: a bias is one per output. Products of two
activations (attention, matmul, bmm, einsum) are work, too, but no layer: they are counted apart.

  nnstretch inspect torchvision:resnet18
  nnstretch inspect net.py:make --input 1,3,64,64 --json
  nnstretch inspect det.onnx --input 1,3,320,320          # sets sizes that the file leaves open
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from nnstretch.cli.arguments import add_inputs, add_model
from nnstretch.cli.loaded_model import load_model_argument, show_notes

if TYPE_CHECKING:
    from nnstretch.graph import Graph, TensorSpec


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    add_model(parser)
    add_inputs(parser)


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data."""
    from nnstretch.structure.cuts import find_cuts
    from nnstretch.structure.macs import CONVENTION, attention_macs

    subject = load_model_argument(args.model, args.input, args.outputs)
    graph = subject.graph if subject.plan is None else stretched_graph(subject)
    specs = graph.specs()
    unused = (
        sum(p.numel() for p in subject.module.parameters()) - graph.params
        if subject.plan is None
        else 0
    )
    return {
        "model": args.model,
        "input_shape": list(graph.inputs[0].spec.shape),
        "inputs": [tensor_json(value.name, value.spec) for value in graph.inputs],
        "outputs": [tensor_json(name, specs[name]) for name in graph.outputs],
        "macs": graph.macs,
        "attention_macs": attention_macs(graph),
        "macs_convention": CONVENTION,
        "params": graph.params,
        "unused_params": unused,
        "notes": list(subject.captured.notes),
        "ops": operator_rows(graph),
        "cuts": [cut.name for cut in find_cuts(graph)],
        "units": unit_rows(graph),
    }


def operator_rows(graph: Graph) -> list[dict[str, Any]]:
    """Return one row an operator, in execution order; weights count where they are read first."""
    from nnstretch.structure.macs import product_macs

    specs = graph.specs()
    params = {w.name: w.spec.elements for w in graph.weights if w.trainable}
    rows: list[dict[str, Any]] = []
    for node in graph.nodes:
        row = {
            "name": node.name,
            "op": node.op,
            "module": node.module,
            "macs": node.macs,
            "attention_macs": product_macs(node, specs),
            "params": sum(params.pop(name, 0) for name in node.inputs),
            "output_shape": list(node.output.shape),
        }
        rows.append(row)
    return rows


def unit_rows(graph: Graph) -> list[dict[str, Any]]:
    """Return one row a unit between cuts, with the work of its products of activations."""
    from nnstretch.structure.blocks import find_units
    from nnstretch.structure.macs import product_macs

    specs = graph.specs()
    rows: list[dict[str, Any]] = []
    for unit in find_units(graph):
        row = {
            "start": unit.start.name,
            "end": unit.end.name,
            "macs": unit.macs,
            "attention_macs": sum(product_macs(node, specs) for node in unit.nodes),
            "params": unit.params,
            "repeat_of": unit.repeat_of,
        }
        rows.append(row)
    return rows


def tensor_json(name: str, spec: TensorSpec) -> dict[str, Any]:
    """Return name, shape and type of an input or output as JSON data."""
    return {"name": name, "shape": list(spec.shape), "dtype": spec.dtype}


def stretched_graph(subject: Any) -> Any:
    """Return the branched network that a plan makes."""
    from nnstretch.capture.example_inputs import example_input
    from nnstretch.capture.torch_export import capture
    from nnstretch.stretch.lowering.lower import lower
    from nnstretch.stretch.weights.branched_module import build_module

    network = build_module(lower(subject.analysis, subject.plan))
    example = example_input(subject.module, subject.plan)
    return capture(network, example, subject.spec)


def tensor_text(tensor: dict[str, Any]) -> str:
    """Return an input or output as `ids 1x128 int64`."""
    return f"{tensor['name']} {'x'.join(map(str, tensor['shape'])) or '()'} {tensor['dtype']}"


def show(result: dict[str, Any], console: Any) -> None:
    """Print the result for people."""
    shape = "x".join(map(str, result["input_shape"]))
    attention = result["attention_macs"]
    products = f" + {attention / 1e6:,.1f} MMACs of attention" if attention else ""
    console.print(
        f"[bold]{result['model']}[/bold]  input {shape}  {result['macs'] / 1e6:,.1f} MMACs"
        f"{products}  {result['params'] / 1e6:,.2f} M parameters"
    )
    if attention:
        console.print(result["macs_convention"])
    for what in ("inputs", "outputs"):
        if len(result[what]) > 1 or result[what][0]["dtype"] != "float32":
            hint = "; #0 behind the model keeps the first" if len(result["outputs"]) > 1 else ""
            texts = ", ".join(map(tensor_text, result[what]))
            console.print(f"{what}: {texts}{hint if what == 'outputs' else ''}")
    if result["unused_params"]:
        console.print(
            f"{result['unused_params']:,} parameters of the module take no part in evaluation"
        )
    show_notes(result["notes"], console)
    if result["units"]:
        console.print(work_table("unit ends at", result["units"], "end", "repeat of"))
        return
    from nnstretch.structure.cuts import no_cut_reason

    ends = ", ".join(f"{o['name']} {'x'.join(map(str, o['shape']))}" for o in result["outputs"])
    reason = no_cut_reason(len(result["inputs"]), len(result["outputs"]))
    console.print(f"no cut: {reason} ({ends})")
    console.print(work_table("module", module_rows(result["ops"]), "module"))


def work_table(title: str, rows: list[dict[str, Any]], key: str, last: str = "") -> Any:
    """Return the table of the work and parameters of rows, those of attention where there is any.

    `last` is the column that tells which unit a row repeats.
    """
    from rich.table import Table

    attention = any(row["attention_macs"] for row in rows)
    table = Table(title, "MMACs", *(["of attention"] if attention else []), "parameters")
    if last:
        table.add_column(last)
    for row in rows:
        cells = [row[key], f"{row['macs'] / 1e6:,.1f}"]
        if attention:
            cells.append(f"{row['attention_macs'] / 1e6:,.1f}")
        cells.append(f"{row['params']:,}")
        table.add_row(*cells, *([row["repeat_of"] or ""] if last else []))
    return table


def module_rows(ops: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add up operators by outermost module; one level deeper while all are in one module."""
    level = 1
    deepest = max((op["module"].count(".") + 1 for op in ops), default=1)
    rows = rows_at_level(ops, level)
    while len(rows) < 2 and level < deepest:
        level += 1
        rows = rows_at_level(ops, level)
    return rows


def rows_at_level(ops: list[dict[str, Any]], level: int) -> list[dict[str, Any]]:
    """Add up operators by the first `level` parts of their module's path."""
    rows: dict[str, dict[str, Any]] = {}
    for op in ops:
        name = ".".join(op["module"].split(".")[:level]) or op["name"]
        empty = {"module": name, "macs": 0, "attention_macs": 0, "params": 0}
        row = rows.setdefault(name, empty)
        for count in ("macs", "attention_macs", "params"):
            row[count] += op[count]
    return list(rows.values())
