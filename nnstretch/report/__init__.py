"""One self-contained HTML page that shows a whole story; needs the standard library and YAML only."""

from nnstretch.report.page import build_report, write_report

__all__ = ["build_report", "write_report"]
