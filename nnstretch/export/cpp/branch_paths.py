"""Which branch an operator of a stretched network belongs to, where its path does not say it."""

from __future__ import annotations

import re
from dataclasses import replace

from nnstretch.capture.torch_export import CapturedNetwork
from nnstretch.graph import Node

BRANCH = re.compile(r"segments\.(?P<segment>\d+)\.branches\.(?P<branch>\d+)")
"""Before the path of a module inside a branch of a stretched network."""
SEGMENT = re.compile(r"segments\.\d+")


def with_branch_paths(captured: CapturedNetwork) -> CapturedNetwork:
    """Return a network whose operators inside a branch, layers or not, carry the branch's path.

    torch.export gives operators that no layer of a branch calls the path of their segment. Branches
    are called one after the other: such an operator belongs to what it reads, or else to what
    comes after it; one that reads several branches is where they meet.
    """
    graph = captured.graph
    paths: dict[str, str] = {}
    following = ""
    ahead: dict[str, str] = {}
    for node in reversed(graph.nodes):
        inside = following.startswith(f"{node.module}.")
        following = branch_path(node) or (following if inside else "")
        ahead[node.name] = following
    nodes: list[Node] = []
    for node in graph.nodes:
        path = branch_path(node)
        if not path and SEGMENT.fullmatch(node.module):
            segment = f"{node.module}."
            read = {paths[name] for name in node.inputs if paths.get(name, "").startswith(segment)}
            path = read.pop() if len(read) == 1 else "" if read else ahead[node.name]
            node = replace(node, module=path or node.module)
        paths[node.name] = path
        nodes.append(node)
    return replace(captured, graph=replace(graph, nodes=tuple(nodes)))


def branch_path(node: Node) -> str:
    """Return the path of the branch inside which a node's module lies; empty for none."""
    place = BRANCH.match(node.module)
    return place[0] if place else ""
