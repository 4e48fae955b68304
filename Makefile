.DEFAULT_GOAL := help
SHELL := bash
.PHONY: help setup demo test test-long bench check release format clean

help: ## show what there is
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## make .venv with everything for development; does nothing when it is up to date
	@scripts/setup main

demo: setup ## lease four environments from a daemon started for it, and play them
	@.venv/bin/python examples/demo.py

test: ## pass every test but the slow ones (with a private Docker Engine where none answers)
	@scripts/test

test-long: ## the slow chaos and learning runs
	@scripts/test long

bench: setup ## run every benchmark, then write docs/benchmarks.md from the results
	@scripts/bench

check: setup ## style, types, import contracts, unit tests
	@scripts/check
	@.venv/bin/python -m pytest tests/unit -m "not long and not sb3"

release: setup ## build the wheel into dist/, when code, changelog, tag and migrations agree
	@scripts/release

format: setup ## put the code into its standard form
	@.venv/bin/ruff check --fix --quiet .
	@.venv/bin/ruff format --quiet .

clean: ## remove everything that was made here, the private engine and its images too
	@scripts/clean
