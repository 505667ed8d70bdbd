# `make demo` and `make test` set everything up by themselves: a virtual environment in .venv, tested versions from
# constraints.txt. Give PIP_ARGS for an index of your own, for example one with CPU-only wheels of torch.
PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
WORKERS ?= 2

.PHONY: demo test drill

demo: $(VENV)/installed
	$(VENV)/bin/paribus run masking --scale tiny --seeds 3 --workers $(WORKERS)

test: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/pytest -n 2

# Longer end-to-end drills: kill, resume, two workers, a real server.
drill: $(VENV)/installed-dev
	$(VENV)/bin/pytest -m drill -rs -n 2 --dist loadfile --no-loadscope-reorder

$(VENV)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "paribus needs Python 3.11 or newer, found " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/installed: $(VENV)/python pyproject.toml constraints.txt
	@echo 'installing paribus and what it needs, a minute or two'
	$(VENV)/bin/pip install -q --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(VENV)/bin/pip install -q --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	touch $@
