# `make demo` and `make test` do all set-up on a fresh machine with Python >= 3.10.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SITE   := $(VENV)/.site

.PHONY: demo test lint types pytest format docs house clean

demo: $(READY)
	$(BIN)/auqadmm demo

test: lint types pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# one thread per process: two workers on two cores, no oversubscription; tests of one cluster stay together
pytest: $(READY)
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# counts of the source: files, repetitions, files that one iteration enters; `tools/house.py -v` names them
house: $(READY)
	$(BIN)/python tools/house.py

# a broken link, a missing page, a name that is gone or anything loaded from elsewhere fails; the site is in site/
docs: $(SITE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(SITE): $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	touch $(SITE)

# torch comes first and alone: a resolver that meets only its range may choose a far larger build
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV) site
