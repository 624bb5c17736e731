# make run    run the default federation
# make flwr   run it in Flower's own simulation, such as make flwr OVERRIDES="rounds=3 seed=1"
# make test   run the tests
# make test-fast   run the tests that start no process and no whole run
# make figures PAGES="PROOF SITES"   measure the figures of these pages again; without PAGES, list which are of former code
# make check  check lint, types and tests, as CI does
# make docs   build the documentation's site in docs/_build
# make release-readme BASE=https://HOST/OWNER/fedclust   write build/README.md, with absolute links
# make hub BASE=…   write build/hub for Flower Hub and PyPI: the app without its tests and benchmarks
# make clean  remove the environment and everything that runs leave here

RECENT := 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
  $$name -c $(RECENT) >/dev/null 2>&1 && echo $$name && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
  --config-settings editable_mode=compat

.PHONY: run flwr test test-fast figures check lint docs release-readme hub clean

run: .venv/.installed
	$(BIN)/python -m fedclust

# `flwr run` with its log; the SuperLink that it starts does not reinstall the dependencies for every run.
flwr: .venv/.installed
	$(BIN)/python -m fedclust engine=superlink engine.connection=local $(OVERRIDES)

# Two processes; a file's tests stay together, the longest file first.
test: .venv/.installed-dev
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder

FAST := $(addprefix tests/fedclust/,aggregation clustering federation layers messages metrics personal privacy proof support)
test-fast: .venv/.installed-dev
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile $(FAST) tests/clients

figures: .venv/.installed-dev
	$(BIN)/python benchmarks/figures.py $(PAGES)

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --strict --cache-dir .mypy_cache/surface --follow-imports=silent fedclust/__init__.py fedclust/runs/library.py

check: lint test

docs: .venv/.installed-docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build
	@echo docs/_build/index.html

# Make links and pictures outside code blocks absolute; a colon marks an address, which is kept.
README := build/README.md
VERSION = $(shell sed -n 's/^version = "\([^"]*\)".*/\1/p' pyproject.toml)
release-readme:
	@$(if $(BASE),,echo "BASE must be the repository's address, such as https://HOST/OWNER/fedclust" >&2; exit 1)
	@mkdir -p $(dir $(README))
	@sed -E -e '/^```/,/^```/!s#(!\[[^]]*\]\()([^):]+\))#\1$(BASE)/raw/v$(VERSION)/\2#g' \
	  -e '/^```/,/^```/!s#(\]\()([A-Za-z][^):]*\))#\1$(BASE)/blob/v$(VERSION)/\2#g' README.md > $(README)
	@echo $(README)

HUB := build/hub
hub: release-readme
	@rm -rf $(HUB) && mkdir $(HUB)
	@git archive HEAD -- ':!tests' ':!benchmarks' | tar -x -C $(HUB)
	@cp $(README) $(HUB)/README.md
	@echo $(HUB)

.venv/bin/python:
	@$(or $(PYTHON),false) -c $(RECENT) \
	  || { echo "Python must be >= 3.11, none was found: make PYTHON=path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[all]'
	@touch $@

.venv/.installed-dev: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[all,dev]'
	@touch .venv/.installed $@

.venv/.installed-docs: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[all,docs]'
	@touch .venv/.installed $@

clean:
	rm -rf docs/_build .venv outputs build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
