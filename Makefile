# One place for the commands that people and CI run. `make test` is the README's test command.
PYTHON ?= python

.PHONY: check lint types unit test

check: lint types test

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types:
	$(PYTHON) -m mypy

unit:
	$(PYTHON) -m pytest tests/unit

test:
	$(PYTHON) -m pytest
