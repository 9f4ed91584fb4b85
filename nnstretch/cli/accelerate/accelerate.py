"""Schedule a network inside one accelerator, simulate it, and compare it with a lower bound.

The accelerator is a file: clusters of cores with a matrix unit, a vector unit and buffers that
software manages. The network is cut into groups, each into instances that fit the local buffers;
instances are ordered so that few tensors wait, tensors get addresses, and what does not fit leaves
the chip by name. Every number is modelled, none measured.

  nnstretch accelerate torchvision:resnet50 --accelerator stcp920 --batch 64
  nnstretch accelerate torchvision:resnet50 --accelerator stcp920 --batch 64 --policy ddr
  nnstretch accelerate torchvision:mobilenet_v2 --accelerator ethos-u55-128
  nnstretch accelerate torchvision:resnet50 --accelerator stcp920 --batch 64 --explain grouping
  nnstretch accelerate torchvision:resnet50 --accelerator stcp920 --batch 64 --rule batch-only=yes
  nnstretch accelerate timm:resnet18 --accelerator stcp920 --sweep local_buffer.size=0.25MiB:4MiB
  nnstretch accelerate timm:vit_base_patch16_224 --accelerator mychip.yaml --batch 8
  nnstretch accelerate timm:resnet18 --accelerator stcp920 --out r18
  nnstretch report r18/chip.json --out r18.html

Policies: ddr (every layer through DDR), gb (results in the global buffer), lb (in the local ones),
ordered (groups in ordered parts), graphturbo (the same, engines run ahead across layers), best
(a climb from the fastest of all of these by simulation, also planned for smaller buffers).
docs/accelerator.md says how to describe a machine, what is modelled and what is not.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.accelerate.engines.dependencies import OVERLAPS
from nnstretch.accelerate.policies import POLICIES
from nnstretch.cli.accelerate.schedule_rules import HELP, options_with_rules
from nnstretch.cli.arguments import add_inputs, add_model
from nnstretch.cli.output_path import check_apart, check_folder, check_makeable, check_writable
from nnstretch.errors import BadInput, UnsupportedOp, one_line

if TYPE_CHECKING:
    from nnstretch.accelerate.accelerate import AccelerateResult
    from nnstretch.accelerate.network_batches import NetworkBatches
    from nnstretch.accelerate.policies import ClusterSchedule
    from nnstretch.graph import InputShape


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    add_model(parser)
    parser.add_argument(
        "--accelerator",
        required=True,
        help="a machine: a name under accelerators/ (stcp920) or a file NAME.yaml of that form",
    )
    parser.add_argument(
        "--batch", type=int, help="inputs in all (default: the first size of --input, else 1)"
    )
    parser.add_argument(
        "--policy", choices=POLICIES, default="graphturbo", help="default: graphturbo"
    )
    parser.add_argument(
        "--per-cluster",
        type=int,
        help="inputs that a cluster computes at once (default: the fastest of its share and halves"
        " of it)",
    )
    parser.add_argument(
        "--overlap",
        choices=OVERLAPS,
        help="load, compute and store: in turn, overlapped in a layer, or across layers",
    )
    parser.add_argument("--dtype", help="fp16, int8, ... (default: the machine's)")
    parser.add_argument(
        "--assume",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="set a field of the description, in its own unit or with one (4MiB), true or false",
    )
    parser.add_argument(
        "--budget-s",
        type=float,
        default=20.0,
        help="time for what best simulates (default: 20); other policies ignore it",
    )
    parser.add_argument("--rule", metavar="NAME=VALUE", action="append", default=[], help=HELP)
    add_results(parser)
    add_inputs(parser)


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that take a schedule as given, and those that ask for more than one."""
    parser.add_argument(
        "--schedule",
        metavar="FILE.yaml",
        help="groups, parts, order, scopes and bindings by hand, as --out writes them",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder for schedule.yaml and chip.json (for nnstretch report), made if need be",
    )
    parser.add_argument(
        "--explain",
        metavar="WHAT",
        help=(
            "why: a step (grouping, slicing, ordering, binding, movement, layers, memory), a group"
            " (g0) or a tensor by its name"
        ),
    )
    parser.add_argument(
        "--sweep",
        metavar="FIELD=A:B",
        help="throughput against a field, each value twice the one before, as"
        " local_buffer.size=0.25MiB:4MiB",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="carry the schedule out on the host, in memory of the planned layout, and compare",
    )
    parser.add_argument(
        "--trace", metavar="FILE.json", help="timeline of the engines, for Perfetto"
    )


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data. Raises BadInput, UnknownName, BadPlan."""
    from nnstretch.accelerate.accelerate import AccelerateRequest, accelerate, result_json
    from nnstretch.accelerate.chip_pictures import chip_document
    from nnstretch.accelerate.explain import explain
    from nnstretch.accelerate.machine.load_accelerator import require_type
    from nnstretch.accelerate.machine.rates import ChipRates
    from nnstretch.accelerate.network_batches import batch_of
    from nnstretch.accelerate.policies import ScheduleOptions
    from nnstretch.accelerate.schedule_file import read_schedule, schedule_yaml
    from nnstretch.accelerate.sweep import base_machine, parse_sweep, sweep
    from nnstretch.files.atomic import write_text
    from nnstretch.files.read import as_path

    check_budget(args.budget_s)
    if args.sweep is not None:
        parse_sweep(args.sweep, args.assume)
    out, trace_path = outputs_of(args)
    machine = base_machine(args.accelerator, args.assume, args.policy, args.sweep)
    rates = ChipRates(machine, require_type(machine, args.dtype))
    options = options_with_rules(ScheduleOptions(args.policy, args.overlap), args.rule)
    by_hand = None if args.schedule is None else read_schedule(as_path(args.schedule, "schedule"))
    batch = batch_of(args.input) if args.batch is None else args.batch
    request = AccelerateRequest(rates, batch, options, args.per_cluster, args.budget_s, by_hand)
    network = load_network(args.model, args.input, args.outputs)
    result = accelerate(network.graph, request)
    answer = result_json(result, args.model)
    if args.check:
        answer["max_abs_error"] = check_numbers(network, result)
    if args.explain is not None:
        answer["explain"] = explain(result, args.explain)
    if args.sweep is not None:
        settings = (args.accelerator, args.assume, args.sweep)
        answer["sweep"] = sweep(network.graph, request, *settings)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / "schedule.yaml", schedule_yaml(result.schedule))
        write_text(out / "chip.json", json.dumps(chip_document(result, answer)) + "\n")
    if trace_path is not None:
        write_trace(trace_path, result.schedule, args.model)
    return answer


def check_budget(budget_s: float) -> None:
    """Check --budget-s. Raises BadInput for a negative one."""
    if budget_s < 0:
        raise BadInput(f"--budget-s is {budget_s:g}, command line, write 0 or more")


def outputs_of(args: argparse.Namespace) -> tuple[Path | None, Path | None]:
    """Return the folder of results and the path of the trace. Raises BadInput.

    What an older run left in the folder is written anew, but never the schedule that is read.
    """
    sources = args.accelerator, args.model, args.schedule
    out = args.out
    files = [] if out is None else [out / "schedule.yaml", out / "chip.json"]
    if out is not None:
        check_makeable(out)
        check_folder(out, "--out")
    if out is not None and out.is_dir():
        for file in files:
            check_writable(file, *sources)
    check_apart(args.trace, out, *files)
    return out, check_writable(args.trace, *sources)


def check_numbers(network: NetworkBatches, result: AccelerateResult) -> float:
    """Carry the schedule out on random inputs and return its largest difference from the network.

    Raises BadPlan for a plan that contradicts itself, Mismatch for other numbers.
    """
    from nnstretch.accelerate.engines.verify_plan import verify_plan
    from nnstretch.accelerate.execute import check

    placed, rates = result.schedule.placed, result.schedule.rates
    verify_plan(placed, rates)
    graph = network.graph(result.per_cluster)
    examples = network.random_inputs(result.per_cluster)
    inputs = dict(zip(graph.input_names, examples, strict=True))
    weights, cores = network.weights(result.per_cluster), rates.accelerator.cores
    try:
        return check(placed, cores, weights, inputs, network.outputs(examples))
    except RuntimeError as error:  # such as an operator that PyTorch lacks on the host
        raise UnsupportedOp(
            f"{network.name} cannot be carried out on this host, --check, {one_line(error)[:200]}"
        ) from None


def write_trace(path: Path, schedule: ClusterSchedule, model: str) -> None:
    """Write what each engine of a cluster does and what each buffer holds, for ui.perfetto.dev."""
    from nnstretch.accelerate.chip_pictures import bytes_over_time
    from nnstretch.accelerate.engines.simulate import trace_of
    from nnstretch.run.perfetto import TraceLabels, write_traces

    trace = trace_of(schedule.instructions, schedule.needs)
    labels = TraceLabels(model, {}, counters=bytes_over_time(schedule))
    write_traces(path, {"one cluster (modelled)": trace}, labels, "modelled")


def load_network(
    model: str, inputs: Sequence[InputShape], outputs: Sequence[str]
) -> NetworkBatches:
    """Load the network that MODEL names, at any batch. Raises BadInput for a plan."""
    from nnstretch.accelerate.network_batches import NetworkBatches
    from nnstretch.capture import example_inputs, load_model
    from nnstretch.capture.model_spec import spec_with
    from nnstretch.cli.loaded_model import is_plan

    if is_plan(model):
        raise BadInput(f"{model} is a plan, accelerate, name the network of one of its branches")
    spec = spec_with(model, inputs, outputs)
    module = load_model(spec)
    examples = getattr(module, "example_inputs", None)
    if examples is None or inputs:
        examples = example_inputs(spec, module, inputs)
    return NetworkBatches(module, tuple(examples), model)


def show(result: dict[str, Any], console: Any) -> None:
    """Print a result for people."""
    from rich.table import Table

    bound = result["throughput_per_s"] / result["bound_per_s"]
    console.print(
        f"[bold]{result['model']}[/bold] on {result['accelerator']}, batch {result['batch']},"
        f" {result['policy']}, {result['element_type']} (modelled)"
    )
    console.print(
        f"{result['throughput_per_s']:,.1f} inputs/s, {result['latency_ms']:.3f} ms,"
        f" {bound:.0%} of the bound {result['bound_per_s']:,.1f}/s ({result['bound_by']})"
    )
    console.print(
        f"{result['per_cluster']} a cluster x {result['iterations']} passes,"
        f" {result['instances']} instances of {result['groups']} groups,"
        f" {result['ddr_bytes'] / 1e6:,.1f} MB through DDR"
        f" ({result['weights_ddr_bytes'] / 1e6:,.1f} MB weights),"
        f" {len(result['assumed'])} assumed values"
    )
    table = Table("group", "operators", "parts", "peak MB", "first", "last")
    for group in result["group_list"][:40]:
        names = group["operators"]
        peak_mb = f"{group['peak_bytes'] / 1e6:.2f}"
        parts = str(group["factor"]) if group["fits"] else "none fits"
        table.add_row(group["name"], str(len(names)), parts, peak_mb, names[0], names[-1])
    console.print(table)
    for spill in result["spills"][:20]:
        console.print(
            f"{spill['tensor']}: {spill['from']} -> {spill['to']}, {spill['bytes']} B,"
            f" {spill['rule']}"
        )
    if (error := result.get("max_abs_error")) is not None:
        console.print(f"carried out on the host: differs from the network by {error:.1e} at most")
    for line in result.get("explain", []):
        console.print(line)
    if "sweep" in result:
        show_sweep(result["sweep"], console)


def show_sweep(swept: dict[str, Any], console: Any) -> None:
    """Print the rate at each value of a field."""
    from rich.table import Table

    table = Table(swept["field"], "inputs/s", "spills")
    for row in swept["rows"]:
        rate = row["throughput_per_s"]
        shown = "does not fit" if rate is None else f"{rate:,.1f}"
        mark = " (knee)" if row["value"] == swept["knee"] else ""
        table.add_row(row["value"] + mark, shown, str(row["spills"]))
    console.print(table)
