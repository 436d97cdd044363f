# Every target does its own set-up: `make demo` and `make test` work on a fresh clone with Python and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-system check docs install constraints clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[baselines,dev,docs,ray,serve]'
	touch $@

# B4, a minute of training, then Teal beside LP-all with HiGHS and with Gurobi.
DEMO := --topology b4 --traffic gravity:seed=0,count=400,load=4 --calibrate 0.9
demo: install
	$(BIN)/teal train $(DEMO) --time-budget 1m --out runs/demo/model --overwrite
	$(BIN)/teal evaluate $(DEMO) --model runs/demo/model --scheme teal --scheme lp-all:solver=highs \
		--scheme lp-all:solver=gurobi --out runs/demo/results --overwrite

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What a newcomer runs: less than four minutes on two cores, kernels compiled.
test: install
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not system"

# Clusters, killed processes, overload, the wheel, long training, browsers, and CUDA kernels in the simulator.
test-system: install
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m system

# The site, in build/site.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# After a deliberate upgrade: write down what is installed now.
# CUDA's own packages are left to torch, whose builds pin them.
constraints: install
	$(BIN)/python -m pip freeze --all --exclude-editable | sed 's/+cpu//' \
		| grep -Ev '^(pip|triton|cuda-[a-z]*|nvidia-.*)==' > constraints.txt

clean:
	rm -rf $(VENV) runs build dist
