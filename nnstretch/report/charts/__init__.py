"""Pictures of the report, drawn as SVG.

svg.py                SVG shapes
palette.py            colours
gantt.py              Gantt chart: panels, rows, bars, axis
gantt_networks.py     Gantt of networks
line_chart.py         lines with a legend, linear or logarithmic
bar_chart.py          bars side by side, with intervals
gantt_overlay.py      Gantt of predictions under runs
gantt_schedule.py     Gantt of any schedule
gantt_pipeline.py     Gantt of a stream
worker_time.py        busy and waiting time of workers
plan_diagram.py       plan as SVG
pareto_chart.py       Pareto front as SVG
latency_breakdown.py  terms of each segment
curves_and_bars.py    curves, bars
"""
