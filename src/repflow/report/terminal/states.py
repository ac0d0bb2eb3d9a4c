"""The tables of `repflow measure` under the names that its command imports, until it asks by the study's name."""

from repflow.report.terminal.measure import side_by_side as comparison_table
from repflow.report.terminal.measure import view as result_view

__all__ = ["comparison_table", "result_view"]
