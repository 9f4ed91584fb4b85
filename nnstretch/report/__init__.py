"""One self-contained HTML page that shows a folder of results.

Needs the standard library and YAML only.

page.py               whole page
headline.py           first screen
chapters.py           chapters
pipeline_chapters.py  chapters of a pipeline
constraint_help.py    one sentence per constraint
format_numbers.py     numbers for people
html.py               escaped HTML (markupsafe)
style.py              CSS, JS
charts/               pictures as SVG
load/                 folder -> data
"""

from nnstretch.report.page import build_report, write_report

__all__ = ["build_report", "write_report"]
