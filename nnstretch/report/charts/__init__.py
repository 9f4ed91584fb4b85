"""Pictures of the report, drawn as SVG.

svg.py                SVG shapes
palette.py            colours
gantt.py              Gantt chart
gantt_overlay.py      two Gantts in one
gantt_pipeline.py     Gantt of a stream
plan_diagram.py       plan as SVG
pareto_chart.py       Pareto front as SVG
latency_breakdown.py  terms of each segment
curves_and_bars.py    curves, bars
"""
