# From a clean clone: `make demo` shows what repflow does, `make test` checks everything.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# One thread per test worker: results then do not depend on the machine, and workers do not fight for cores.
TEST_ENV := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
# Each worker takes neighbouring tests, which share models and runs; who is done first takes over from the other's end.
SPREAD := -n $(WORKERS) --dist worksteal

# Instruction sets of smaller CPUs, and a thread more: sums are then taken in another order.
CPUS := "ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=1" \
        "ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 OMP_NUM_THREADS=2"

.PHONY: audit demo docs test test-all test-cpus test-gpu lint faults fuzz install wheel clean

demo: $(VENV)/.installed
	$(BIN)/repflow demo

install: $(VENV)/.installed

# One file to install elsewhere, models and page included: dist/repflow-*.whl.
wheel:
	$(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps -w dist .

# The documentation as a site: open site/index.html; needs no network.
docs: $(VENV)/.installed-dev
	$(BIN)/zensical build --clean --strict

test: lint
	$(TEST_ENV) $(BIN)/python -m pytest $(SPREAD)

# Every case of the matrices of which `make test` runs a sample (tests/sample.py), every page of docs too, and types
# checked in every call; `make test` checks them where shapes are declared, which takes a tenth less time.
test-all: lint
	$(TEST_ENV) $(BIN)/python -m pytest $(SPREAD) -m "" --jaxtyping-packages=repflow,beartype.beartype

# Trainings that only a GPU runs. Without the checks of shapes: they wrap functions, and Triton compiles from source.
test-gpu:
	python3 -m pytest -q tests/training -m "" -k "cuda_graph or on_a_gpu" --jaxtyping-packages=

# The tests marked numeric, as other CPUs would round; `make test` has run them on this one.
test-cpus: $(VENV)/.installed-dev
	@for cpu in $(CPUS); do \
	  echo "== $$cpu"; \
	  env TOKENIZERS_PARALLELISM=false $$cpu $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "numeric and not slow" \
	    $$(grep -rl --include='test_*.py' mark.numeric tests) || exit 1; \
	done

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Known advisories of what is installed; it informs and never fails.
audit: $(VENV)/.installed-dev
	@VENV=$(VENV) PYTHON=$(PYTHON) .ci/audit

# Every kill through the real command line; `make test` runs a sample of them.
faults: $(VENV)/.installed-dev
	$(TEST_ENV) REPFLOW_FAULTS=full $(BIN)/python -m pytest $(SPREAD) -m "" tests/faults

# 200,000 damaged files of every format that repflow reads, about 20 CPU minutes; `make test` runs 500.
fuzz: $(VENV)/.installed-dev
	$(TEST_ENV) $(BIN)/python -m tests.faults.fuzz --cases 200000 --seed $(or $(SEED),1)

# constraints.txt must be given to every pip call: without it a newer torch replaces the tested one.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("repflow needs Python 3.11 or newer; got " + sys.version.split()[0] + "; run make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist site .cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
