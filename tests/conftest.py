"""What holds for every test: the oracle that nobody may notice, and two savings of time.

flash-linear-attention is here as an oracle only: neither transformers' models nor its registry may notice it. Imported
whole, it registers its own Mamba under transformers' name; and where transformers finds it, Qwen3-Next runs its
kernels, which need a GPU.
"""

import functools
import gc
import importlib.metadata
import importlib.util
import sys
import types

import typer.testing

_spec = importlib.util.find_spec("fla")
if _spec is not None and "fla" not in sys.modules:
    sys.modules["fla"] = None  # type: ignore[assignment]
    import transformers.models.qwen3_next.modeling_qwen3_next  # noqa: F401  it looks for fla once, when it is imported

    sys.modules["fla"] = types.ModuleType("fla")  # the package without its __init__, so that its parts can be imported
    sys.modules["fla"].__path__ = list(_spec.submodule_search_locations or [])
    sys.modules["fla"].__version__ = importlib.metadata.version("flash-linear-attention")

# a command tree of forty options a command takes longer to build than many of the commands take to run
typer.testing._get_command = functools.cache(typer.testing._get_command)


def pytest_collection_finish():
    """Imported modules stay: no later collection of garbage, and studies ask for many, has to walk through them."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    """At the end modules are taken apart as ever."""
    gc.unfreeze()
