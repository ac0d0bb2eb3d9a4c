"""The command line in this process, and what a process of its own may be forbidden."""

import socket
from dataclasses import dataclass

from typer.testing import CliRunner

WIDE = "200"
"""Columns that no table must fold into; a test of narrow tables sets its own."""


@dataclass
class Outcome:
    code: int
    out: str
    err: str


def invoke(*args):
    """Run a command where the process stands; what it raises is raised."""
    from repflow.cli.main import app

    result = CliRunner().invoke(app, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


def no_connections():
    """End the process where it asks for one."""

    def refuse(*args, **kwargs):
        raise SystemExit("a connection was tried")

    socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
