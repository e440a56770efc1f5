# Both README commands work from a fresh clone: the environment is made from requirements.lock on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PEERS := $(VENV)/.peers
TRAINERS := $(VENV)/.trainers
DOCS := $(VENV)/.docs
GPU := $(VENV)/.gpu
SITE := build/site
STEP_OPTIONS ?= # --slow-peers adds packages that force bfloat16: minutes
WORKERS ?= 2

.PHONY: demo test check bench docs site docs-serve paper soak runs runs-status runs-stop runs-report clean

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

docs: $(READY) $(DOCS) site  # the site, then every snippet of it
	OMP_NUM_THREADS=1 $(BIN)/python docs/guides/figures.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest src README.md docs tests/docs -q -m "not slow"

site: $(READY) $(DOCS)  # warnings are errors: broken links, names without a docstring, formulas
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --fail-on-warning --keep-going -q -b html docs $(SITE)

docs-serve: site
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory $(SITE) 8000

paper:  # needs the Debian packages texlive-latex-recommended, texlive-fonts-recommended and lmodern
	cd docs/paper && for pass in 1 2; do pdflatex -interaction=batchmode -halt-on-error -jobname=muonlab main.tex || exit; done
	rm docs/paper/muonlab.aux docs/paper/muonlab.log docs/paper/muonlab.out

soak: $(READY) $(TRAINERS) $(DOCS) $(GPU)
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
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(READY)

$(PEERS): benchmarks/peers.txt $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/peers.txt
	touch $(PEERS)

$(TRAINERS): requirements-trainers.txt $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-trainers.txt
	touch $(TRAINERS)

$(DOCS): requirements-docs.txt $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-docs.txt
	touch $(DOCS)

$(GPU): requirements-gpu.txt $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-gpu.txt
	touch $(GPU)
