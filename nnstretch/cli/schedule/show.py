"""The result of `nnstretch schedule` as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nnstretch.cli.schedule.text_gantt import text_gantt
from nnstretch.report.format_numbers import graph_time

if TYPE_CHECKING:
    from rich.console import Console

MOST_ROWS = 60


def show(result: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    if "policies" in result:
        show_policies(result["policies"], console)
    else:
        show_schedule(result, console)


def show_policies(rows: list[dict[str, str]], console: Console) -> None:
    """Print every policy."""
    from rich.table import Table

    from nnstretch.cli.schedule.policies import PLANNED

    for decides in dict.fromkeys(row["decides"] for row in rows):
        table = Table("policy", "chooses", "source", "equal choices", "cost per task")
        table.title = f"decides {decides}"
        for row in rows:
            if row["decides"] == decides:
                table.add_row(row["name"], row["rule"], row["source"], row["ties"], row["cost"])
        console.print(table)
    console.print("n tasks, of k kinds, that wait; P processors")
    console.print(
        "simulate and serve know those that decide when tasks are ready, by their names without"
        f" _rt (but heft_rt), and {', '.join(PLANNED)}, which plan each job when it arrives"
    )


def show_schedule(result: dict[str, Any], console: Console) -> None:
    """Print one schedule."""
    from rich.table import Table

    table = Table("start", "end", "processor", "task")
    for row in result["tasks"][:MOST_ROWS]:
        times = graph_time(row["start"]), graph_time(row["end"])
        table.add_row(*times, row["processor"], row["task"])
    console.print(table)
    if len(result["tasks"]) > MOST_ROWS:
        console.print(f"and {len(result['tasks']) - MOST_ROWS} more; --json lists all")
    processors = tuple(result["utilisation"])
    for line in text_gantt(result["tasks"], processors, result["makespan"], console.width):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(verdict(result))


def verdict(result: dict[str, Any]) -> str:
    """Return how good a schedule is, in a sentence."""
    words = f"{result['policy']}: makespan {graph_time(result['makespan'])}"
    if result["optimal"]:
        return f"{words}, optimal"
    proof = bound_words(result)
    if result["gap"] is None:
        return f"{words}, any share above the optimum ({proof})"
    return f"{words}, at most {result['gap']:.1%} above the optimum ({proof})"


def bound_words(result: dict[str, Any]) -> str:
    """Return where a lower bound comes from."""
    bounds = result["bounds"]
    words = f"lower bound {graph_time(result['lower_bound'])}"
    if "solver" in bounds:
        optimum = result["optimum"]
        ends = "optimum" if optimum["proven"] else "best known"
        return f"{ends} {graph_time(optimum['makespan'])}, {words} by the solver"
    path, work = graph_time(bounds["critical_path"]), graph_time(bounds["work"])
    return f"{words}: critical path {path}, work by processors {work}"
