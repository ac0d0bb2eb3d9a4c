"""Core: axes, errors, results, intervals, verdicts, the catalogue of metrics: data that every layer reads. No torch."""
