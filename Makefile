PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test mypy pytest docs clean

demo: $(VENV)/.installed
	$(BIN)/condenset run digits --ipc 1 --ipc 10

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --jobs 2 mypy pytest

mypy: $(VENV)/.installed-dev
	$(BIN)/mypy

pytest: $(VENV)/.installed-dev
	sh tests/install_browser.sh
	$(BIN)/pytest -n 2 --dist loadgroup

# Build the documentation site into build/site. Open build/site/index.html in a browser.
docs: $(VENV)/.installed-dev
	$(BIN)/python docs/tools/results.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The package is installed in place: a change of the code needs no new install, a change of the requirements does.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info packages/*/build packages/*/src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
