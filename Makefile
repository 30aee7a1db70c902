.PHONY: check fast lint page

check: lint  ## what CI runs
	python -m pytest

fast: lint  ## the tests for every save
	python -m pytest -m "not slow"

lint:
	ruff check .
	ruff format --check .
	mypy

page:  ## the report's HTML, CSS and JavaScript joined into page.json
	python -m cflower.runs.report.build
