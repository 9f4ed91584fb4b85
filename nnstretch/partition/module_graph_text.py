"""Links as text in four sections and as a dictionary.

Pure: printing changes nothing, and neither does reading.
"""

from __future__ import annotations

from typing import Any

from nnstretch.partition.module_graph import (
    PIPELINE,
    Endpoint,
    ModuleGraph,
    ModuleSettings,
    require_complete,
    topological_order,
)


def to_text(links: ModuleGraph) -> str:
    """Return parameter groups, inputs, outputs and connections, modules by their place in
    topological order.
    """
    place = {module.name: f"mod{number}" for number, module in enumerate(topological_order(links))}
    output = {module.name: [item.name for item in module.outputs] for module in links.modules}

    def spelt(end: Endpoint) -> str:
        if end.kind == "output":
            return f"{place[end.owner]}.output({output[end.owner].index(end.name)})"
        return f"{place[end.owner]}:{end.name or 'param'}"

    groups = [
        f"|{s.name}: {spelt(t)}"
        for s, t in links.connections
        if s.owner == PIPELINE and s.kind == "param"
    ]
    inputs = [
        f"|{s.name}: {spelt(t)}"
        for s, t in links.connections
        if s.owner == PIPELINE and s.kind == "input"
    ]
    bound = sorted(
        ((int(t.name), s) for s, t in links.connections if t.owner == PIPELINE),
        key=lambda pair: pair[0],
    )
    outputs = [f"|output({index}) : {spelt(source)}" for index, source in bound]
    inner = [(s, t) for s, t in links.connections if PIPELINE not in (s.owner, t.owner)]
    rows = sorted(
        (place[s.owner], output[s.owner].index(s.name), f"|{spelt(s)}-> {place[t.owner]}.{t.name}")
        for s, t in inner
    )
    sections = {
        "Params": groups,
        "Inputs": inputs,
        "output": outputs,
        "connections": [row for _, _, row in rows],
    }
    return "\n\n".join(
        "\n".join([name, *(f"  {row}" for row in body)]) for name, body in sections.items()
    )


def to_dict(links: ModuleGraph) -> dict[str, Any]:
    """Return everything about complete links. Raises BadInput that names what is missing."""
    require_complete(links)
    index = {module.name: number for number, module in enumerate(topological_order(links))}
    return {
        "module_connection": {
            module.name: {
                "mod_idx": index[module.name],
                **settings_of(links.settings.get(module.name, ModuleSettings())),
                "call": module.call,
                "output": [
                    {"output_idx": at, "dependencies": dependencies}
                    for at, item in enumerate(module.outputs)
                    if (
                        dependencies := [
                            dependency(index, t)
                            for t in links.fed_by(Endpoint(module.name, "output", item.name))
                        ]
                    )
                ],
            }
            for module in topological_order(links)
        },
        "input_connection": [
            {
                "global_interface_name": s.name,
                "mod_idx": index[t.owner],
                "module_interface_name": t.name,
            }
            for s, t in links.connections
            if s.owner == PIPELINE and s.kind == "input"
        ],
        "param_connection": [
            {"global_param_name": s.name, "mod_idx": index[t.owner]}
            for s, t in links.connections
            if s.owner == PIPELINE and s.kind == "param"
        ],
    }


def settings_of(settings: ModuleSettings) -> dict[str, Any]:
    """Return a module's settings as plain data."""
    return {
        "processors": list(settings.processors),
        "threads": settings.threads,
        "cores": list(settings.cores),
        "capacity": settings.capacity,
        **({"replicas": settings.replicas} if settings.replicas > 1 else {}),
    }


def dependency(index: dict[str, int], target: Endpoint) -> dict[str, Any]:
    """Return one connection as plain data."""
    if target.owner == PIPELINE:
        return {"global_output_index": int(target.name)}
    return {"mod_idx": index[target.owner], "input_name": target.name}
