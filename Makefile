# Both README commands work from a fresh clone: the environment is made from requirements.lock on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PEERS := $(VENV)/.peers
STEP_OPTIONS ?= # --slow-peers adds packages that force bfloat16: minutes
WORKERS ?= 2

.PHONY: demo test check bench docs soak runs runs-status runs-stop runs-report clean

demo: $(READY)
	$(BIN)/muonlab run quickstart --profile small

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not slow and not gpu"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY) $(PEERS)
	$(BIN)/python benchmarks/orthogonalize.py
	$(BIN)/python benchmarks/step.py $(STEP_OPTIONS)

docs: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python docs/guides/figures.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest src README.md docs/guides tests/docs -q

soak: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m slow

runs:
	results/runs.sh

runs-status: $(READY)
	results/runs.sh status

runs-stop:
	results/runs.sh stop

runs-report: $(READY)  # pages and verdicts of all runs, and the README's sentence on them
	$(BIN)/muonlab report results/runs
	$(BIN)/python results/readme.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(READY)

$(PEERS): benchmarks/peers.txt $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/peers.txt
	touch $(PEERS)
