.PHONY: help check fast lint format docs golden page picture
.DEFAULT_GOAL := help

help:  ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

check: lint  ## what CI runs: style, types and all tests
	python -m pytest

fast: lint  ## the tests for every save
	python -m pytest -m "not slow"

lint:  ## style and types, nothing changed
	ruff check .
	ruff format --check .
	mypy

format:  ## style put right where it can be
	ruff check --fix .
	ruff format .

docs:  ## the documentation as a site, into build/site
	sphinx-build -q -W -b html docs build/site

golden:  ## write tests/golden anew; then read its git diff
	python -m tests.golden.run

page:  ## the report's HTML, CSS and JavaScript joined into page.json
	python -m cflower.runs.report.build

picture:  ## docs/pictures/report.png: the README's run, and the first window of its report
	cflower simulate --clients 20 --baselines --out outputs -c "shift='label-permutation' num-groups=4"
	python scripts/screenshot.py "$$(ls -td outputs/2* | head -1)"
