# The daily workflow. `make run` and `make test` need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install run test check compiled bench fuzz docs lock clean

install: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Holdfast needs Python 3.11 or newer; set PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(STAMP)

run: install
	$(BIN)/holdfast simulate examples/partial-outage.yaml

test: check
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term:skip-covered
	$(BIN)/python -m coverage report --include='src/holdfast/core/*' --fail-under=95 --format=total

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Optional: the hot part as machine code, in build/compiled; needs a C compiler. See docs/internals/compiled.md.
compiled: install
	$(BIN)/python bench/compiled.py

bench: install
	$(BIN)/python bench/sim.py

fuzz: install
	$(BIN)/python -m holdfast.sim.fuzz --seeds 1000
	$(BIN)/python tests/fuzz/gateway.py --cases 10000 --seed 0

# Rewrites what the docs take from the code and from running it.
docs: install
	$(BIN)/python docs/generate.py

# Writes the lock file anew; needs uv. No index address may enter it.
lock:
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --group dev pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .coverage .hypothesis
