.PHONY: help check check-oldest fast lint format docs constraints constraints-oldest golden page picture
.DEFAULT_GOAL := help

help:  ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

# Processes that run the tests: `make fast WORKERS=8` on a larger machine.
WORKERS = 2
# While some tests wait for the nodes of real federations, others can run.
check: WORKERS = 4
export OMP_NUM_THREADS ?= 1

check: lint  ## what CI runs: style, types and all tests
	python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

fast: lint  ## the tests for every save
	python -m pytest -n $(WORKERS) --dist loadfile -m "not slow"

lint:  ## style and types, nothing changed
	ruff check .
	ruff format --check .
	mypy

format:  ## style put right where it can be
	ruff check --fix .
	ruff format .

docs:  ## the documentation as a site, into build/site
	sphinx-build -q -W -b html docs build/site

constraints:  ## the newest versions that pyproject.toml permits into constraints.txt; then `make check`
	python3 -m venv build/venv && build/venv/bin/pip install --quiet -e ".[dev]"
	sed -n '/^#/p' constraints.txt > build/constraints.txt
	build/venv/bin/pip freeze --exclude cflower >> build/constraints.txt
	mv build/constraints.txt constraints.txt

check-oldest:  ## the quick tests with the lowest versions that pyproject.toml permits, in build/oldest
	python3.11 -m venv build/oldest && build/oldest/bin/pip install --quiet -c constraints-oldest.txt -e ".[dev]"
	PATH="$(CURDIR)/build/oldest/bin:$$PATH" python -m pytest -n $(WORKERS) --dist loadfile -m "not slow"

constraints-oldest:  ## these versions into constraints-oldest.txt, by uv from PyPI; then `make check-oldest`
	mkdir -p build && sed -n '/^#/p' constraints-oldest.txt > build/oldest.txt
	uv pip compile --quiet --resolution lowest-direct --python-version 3.11 --extra dev \
		--no-header --no-annotate pyproject.toml >> build/oldest.txt
	mv build/oldest.txt constraints-oldest.txt

golden:  ## write tests/golden anew; then read its git diff
	python -m tests.golden.run

page:  ## the report's HTML, CSS and JavaScript joined into page.json
	python -m cflower.runs.report.build

picture:  ## docs/pictures/report.png: the README's run, and the first window of its report
	cflower simulate --clients 20 --baselines --out outputs -c "shift='label-permutation' num-groups=4"
	chromium --headless --no-sandbox --force-prefers-reduced-motion --hide-scrollbars --window-size=1200,900 \
		--virtual-time-budget=5000 --screenshot=docs/pictures/report.png "file://$$(ls -td $(CURDIR)/outputs/2*/report.html | head -1)"
