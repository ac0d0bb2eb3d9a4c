"""The report page: one HTML file made from stored runs."""

from repflow.moved import successor

__getattr__ = successor("repflow.report.page", "repflow.report.page.render")
