"""A configuration chooses no code: kernels of the hub are refused by name, and never fetched."""

import json
import subprocess
import sys

import pytest

from repflow.core.errors import InputError
from repflow.models import load
from repflow.models.implementations import refuse_fetched_code
from tests.models.tiny_configs import save_tiny, tiny_model

HOSTILE = [
    (
        {"attn_implementation": "owner/kernel"},
        "attn_implementation: eager, sdpa, flex_attention; got 'owner/kernel' in the",
    ),
    ({"_attn_implementation": "owner/kernel@main:f"}, "got 'owner/kernel@main:f'"),
    ({"_attn_implementation_internal": "owner/kernel"}, "got 'owner/kernel'"),
    ({"attn_implementation": "paged|owner/kernel"}, "got 'paged.owner/kernel'"),
    ({"attn_implementation": {"": "sdpa", "text_config": "owner/kernel"}}, "got 'owner/kernel'"),
    ({"text_config": {"attn_implementation": "owner/kernel"}}, "got 'owner/kernel'"),
    ({"parts": [{"attn_implementation": "owner/kernel"}]}, "got 'owner/kernel'"),
    ({"attn_implementation": ["owner/kernel"]}, "attn_implementation: eager"),
    ({"attn_implementation": 7}, "attn_implementation: eager"),
    (
        {"attn_implementation": "flash_attention_3"},
        "got 'flash_attention_3' .*without the package flash_attn_interface",
    ),
    ({"experts_implementation": "sonicmoe"}, "experts_implementation: eager, batched_mm, grouped_mm; got 'sonicmoe'"),
    ({"_experts_implementation": "deepgemm"}, "got 'deepgemm'"),
]


@pytest.mark.parametrize(("entry", "message"), HOSTILE)
@pytest.mark.parametrize("form", ["folder", "config"])
def test_configurations_that_fetch_code_are_refused(entry, message, form, tmp_path):
    folder = save_tiny("llama", tmp_path / "m")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entry))
    with pytest.raises(InputError, match=message):
        load(folder if form == "folder" else f"config:{file}")


@pytest.mark.parametrize("value", ["eager", "sdpa", None, {"": "eager"}])
def test_local_ones_are_taken(value, tmp_path):
    folder = save_tiny("llama", tmp_path / "m")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"attn_implementation": value}))
    assert load(folder).n_layers == 4


def test_plain_configurations_pass():
    refuse_fetched_code(tiny_model("qwen3_next").config.to_dict(), "tiny")


FAKE = """
import pathlib
def get_kernel(name, **options):
    (pathlib.Path(__file__).parent / "fetched").write_text(name)
    raise FileNotFoundError(name)
class _Any:
    def __init__(self, *args, **kwargs): pass
    def __class_getitem__(cls, item): return cls
    def __call__(self, *args, **kwargs): return args[0] if args else None
def _decorator(*args, **kwargs):
    return lambda thing: thing
def __getattr__(name):
    return _decorator if name.startswith(("use_", "replace_", "register_", "kernelize")) else _Any
"""
SCRIPT = """
import pathlib, sys
from transformers.utils import is_kernels_available
assert is_kernels_available()
import transformers.integrations.hub_kernels as hub
from repflow.models import load
from repflow.models.implementations import no_fetched_kernels
try:
    load(sys.argv[1])
except Exception as error:
    print(type(error).__name__, error)
with no_fetched_kernels():
    try:
        hub.load_and_register_attn_kernel("owner/kernel")
    except Exception as error:
        print(error)
fetched = pathlib.Path(sys.argv[2])
print("fetched before:", fetched.exists())
try:
    hub.load_and_register_attn_kernel("owner/kernel")
except Exception:
    print("fetched after:", fetched.exists())
"""


def test_nothing_is_fetched_with_the_package_installed(tmp_path):
    """With a stand-in for the package `kernels` that writes down what it was asked for."""
    from transformers.utils.import_utils import KERNELS_MIN_VERSION

    site = tmp_path / "site"
    (site / "kernels").mkdir(parents=True)
    (site / "kernels" / "__init__.py").write_text(FAKE)
    (site / "kernels" / "layer").mkdir()
    (site / "kernels" / "layer" / "__init__.py").write_text("")
    (site / "kernels" / "layer" / "mode.py").write_text("class Mode: pass")
    (site / f"kernels-{KERNELS_MIN_VERSION}.dist-info").mkdir()
    (site / f"kernels-{KERNELS_MIN_VERSION}.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: kernels\nVersion: {KERNELS_MIN_VERSION}\n"
    )
    folder = save_tiny("llama", tmp_path / "m")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"attn_implementation": "owner/kernel"}))
    code = f"import sys; sys.path[:0] = [{str(site)!r}, *{sys.path!r}]\n{SCRIPT}"
    line = [sys.executable, "-c", code, str(folder), str(site / "kernels" / "fetched")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "InputError expected attn_implementation: eager" in done.stdout
    assert "repflow runs no kernels from the hub, and this model asks for 'owner/kernel'" in done.stdout
    assert "fetched before: False\nfetched after: True" in done.stdout  # the stand-in does see what is fetched
