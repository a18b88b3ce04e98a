# Bootstraps everything from python3 (3.11+), pip and make. `make plan` runs the main job, `make test` the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SCENARIO ?= core
export PYTHONSAFEPATH := 1
export DO_NOT_TRACK := 1

.PHONY: help setup plan test unit lint types docs check clean

help:  ## List the targets
	@grep -E '^[a-z]+:.*##' Makefile | sed 's/:.*##/\t/'

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

setup: $(VENV)/.installed  ## Install into .venv

plan: setup  ## Build the library if needed, allocate, publish and print the plan of SCENARIO (default core)
	$(BIN)/coral plan --scenario $(SCENARIO)

test: setup  ## All tests
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --durations=25

unit: setup  ## The tests that need no server
	$(BIN)/python -m pytest tests/unit -n auto --dist loadfile

lint: setup  ## ruff: lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup  ## mypy
	$(BIN)/mypy

docs: setup  ## The documentation as a site in build/docs, with no dead link
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

check: lint types test  ## Everything that must hold before a change lands

clean:  ## Remove the environment and the local lake
	rm -rf $(VENV) .coral build *.egg-info
