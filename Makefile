# Everything lives in .venv; a stamp file is newer than what it was built from, so a second run asks for no network.
PYTHON ?= python3
PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
PINNED := pyproject.toml constraints.txt

.PHONY: run test docs clean

run: .venv/run.stamp
	$(PY) -m normstorm run

test: .venv/test.stamp
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m pytest -q -n 2

docs: .venv/test.stamp
	$(PY) -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "build/docs/index.html"

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(PY):
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "make: normstorm needs Python 3.11 or newer; got %d.%d" % v[:2])'
	$(PYTHON) -m venv .venv

# The build backend is installed from the constraints too: pip's build isolation would ignore them.
.venv/run.stamp: $(PINNED) | $(PY)
	$(PIP) install -c constraints.txt hatchling editables
	$(PIP) install -c constraints.txt --no-build-isolation -e .
	@touch $@

.venv/test.stamp: .venv/run.stamp
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[test]'
	@touch $@
