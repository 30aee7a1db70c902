.PHONY: check fast lint

check: lint  ## what CI runs
	python -m pytest

fast: lint  ## the tests for every save
	python -m pytest -m "not slow"

lint:
	ruff check .
	ruff format --check .
	mypy
