"""Dtypes are tried in a process of their own before a model may use them."""

import signal
import subprocess
import types

import pytest
import torch

from repflow.core.errors import InputError
from repflow.models import devices, load, probe_dtype, probe_dtypes
from tests.models.tiny_configs import tiny_model


@pytest.fixture
def answers(monkeypatch):
    """Let the probe's process end in a way of our choice."""
    calls = []

    def choose(returncode, stderr=""):
        def run(command, **options):
            calls.append(command)
            if returncode == "timeout":
                raise subprocess.TimeoutExpired(command, 1)
            return types.SimpleNamespace(returncode=returncode, stderr=stderr)

        devices._probe.cache_clear()
        monkeypatch.setattr(devices.subprocess, "run", run)
        return calls

    yield choose
    devices._probe.cache_clear()


@pytest.mark.parametrize(
    ("returncode", "stderr", "message"),
    [
        (-signal.SIGILL, "", "killed by SIGILL"),
        (1, "Traceback\nRuntimeError: not implemented for 'Half'", "RuntimeError: not implemented for 'Half'"),
        ("timeout", "", "no answer within"),
    ],
)
def test_a_dtype_this_cpu_cannot_run_is_refused(answers, returncode, stderr, message):
    calls = answers(returncode, stderr)
    assert message in probe_dtype(torch.bfloat16)
    with pytest.raises(InputError, match=f"a dtype this CPU can run; got torch.bfloat16 .{message}.*use float32"):
        load(tiny_model("gpt2"), dtype="bf16")
    assert len(calls) == 1, "the answer is kept"
    assert message in probe_dtypes()["bfloat16"]


def test_a_dtype_that_works(answers):
    answers(0)
    assert probe_dtypes() == dict.fromkeys(devices.DTYPES, "ok")


def test_real_probe_agrees_with_a_real_load():
    problem = probe_dtype(torch.float16)
    if problem is None:
        assert load(tiny_model("gpt2"), dtype="float16").dtype == torch.float16
    else:
        with pytest.raises(InputError):
            load(tiny_model("gpt2"), dtype="float16")


def test_devices():
    assert devices.resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(InputError, match="a device such as cpu"):
        devices.resolve_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no GPU is visible"):
            devices.resolve_device("cuda:0")
        assert devices.resolve_device(None) == torch.device("cpu")
