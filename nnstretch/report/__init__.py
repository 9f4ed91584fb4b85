"""One self-contained HTML page of a folder of results; needs the standard library and YAML only.

page.py             whole page
page_shell.py       what every page consists of
simulations/        pages of simulated workloads
chips/              the page of a schedule inside an accelerator
chapters/           chapters and first screens
charts/             pictures as SVG
load/               folder -> data
constraint_help.py  one sentence per constraint
format_numbers.py   numbers for people
html.py             escaped HTML
notebook.py         what a notebook shows of nouns
style.py            CSS, JS
plain_style.py      CSS without variables, of drawings that stand alone
"""

from nnstretch.report.page import build_report, write_report

__all__ = ["build_report", "write_report"]
