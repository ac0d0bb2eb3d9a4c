"""Studies: one file per question, each a Config and a run(config) that gives a Result."""

from typing import Any


def __getattr__(name: str) -> Any:
    """`check_study` for studies of one's own, imported when it is asked for: a study's module alone is quick."""
    if name == "check_study":
        from repflow.studies.engine.conformance import check_study

        return check_study
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
