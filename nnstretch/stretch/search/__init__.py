"""The exact search: a space of plans, lower bounds, label setting, and the proof.

search.py            `search()`: the entry point
search_problem.py    one space: priced, searched, its plans scored
early_stop.py        what ends a search early: a time limit, an interrupt
feasibility.py       whether limits of the whole network leave any plan, and why they do not
search_result.py     plans with their numbers, and how sure the search is of them
space/               meeting points, depths and widths, and what branches cost
constraints.py       limits of a segment, of the network, of memory
options/             a segment, its processors, its merge: the arcs of the search graph
bounds/              Lagrangian lower bounds and cost-to-go
compiled/            inner loops in C
label_setting/       label setting for the resource-constrained shortest path
greedy_plans.py      plans along the bounds
branch_and_bound.py  bounds, incumbents, pruning and label searches, until optimal
search_schedule.py   how much effort the search spends, and in which order
warm_start.py        few widths, then few options, before all of them
alternatives.py      good plans beside the best
pareto.py            one search repeated: epsilon-constraint fronts, sensitivity
statistics.py        size of the space, refusals by rule
explain.py           why branches may (not) meet at a cut
"""
