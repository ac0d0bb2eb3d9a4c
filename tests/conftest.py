"""What holds for every test: two savings of time."""

import functools
import gc

import typer.testing

# a command tree of forty options a command takes longer to build than many of the commands take to run
typer.testing._get_command = functools.cache(typer.testing._get_command)


def pytest_collection_finish():
    """Imported modules stay: no later collection of garbage, and studies ask for many, has to walk through them."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    """At the end modules are taken apart as ever."""
    gc.unfreeze()
