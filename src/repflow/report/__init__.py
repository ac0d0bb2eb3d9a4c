"""Report: tables, figures and pages from results. Never imports torch."""
