# Every target does its own set-up on a fresh machine with Python >= 3.10, and no more of it than it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet -c constraints.txt
# what is installed: the library with its plots; what checks it; what builds the site; MLflow; what builds a wheel
DEMO   := $(VENV)/.demo
READY  := $(VENV)/.ready
SITE   := $(VENV)/.site
EXTRA  := $(VENV)/.extra
BUILD  := $(VENV)/.build

# one thread per process: two workers on two cores, no oversubscription; tests of one cluster stay together; the programs
# that tests start read what was compiled before
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 2 --dist loadgroup

.PHONY: demo ready test lint types pytest test-campaign test-extra format docs house wheel clean

demo: $(DEMO)
	$(BIN)/auqadmm demo

ready: $(READY)

test: lint types pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

pytest: $(READY)
	$(PYTEST)

# the rest of the large tables of tests (every loss with every regularizer, method, engine …), of which `make test` runs a part
test-campaign: $(READY)
	$(PYTEST) -m campaign

# tests that `make test` skips because their packages are large; the imports see to it that nothing is skipped here
test-extra: $(EXTRA)
	$(BIN)/python -c "import mkdocs, mlflow"
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/pytest \
		tests/callbacks/test_trackers.py::test_mlflow_reads_what_was_written \
		tests/docs/test_site.py::test_the_site_builds

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# counts of the source: files, repetitions, files that one iteration enters; `tools/house.py -v` names them
house: $(DEMO)
	$(BIN)/python tools/house.py

# a broken link, a missing page, a name that is gone or anything loaded from elsewhere fails; the site is in site/
docs: $(SITE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# sdist, and the wheel made from it, into dist/; tools/try_wheel.sh tries them in a clean environment
wheel: $(BUILD)
	rm -rf dist
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m build --outdir dist

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# torch comes first and alone: a resolver that meets only its range may choose a far larger build
$(DEMO): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) torch
	$(PIP) -e .
	touch $(DEMO)

$(READY): $(DEMO)
	$(PIP) -e ".[dev]"
	touch $(READY)

$(SITE): $(DEMO)
	$(PIP) -e ".[docs]"
	touch $(SITE)

$(EXTRA): $(READY) $(SITE)
	$(PIP) -e ".[mlflow]"
	touch $(EXTRA)

$(BUILD): constraints.txt | $(BIN)/python
	$(PIP) build
	touch $(BUILD)

clean:
	rm -rf $(VENV) site dist
