# Every target does its own set-up: `make demo` and `make test` work on a fresh clone with Python and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-for-demo
# Where torch comes from.  Without a GPU, TORCH_INDEX=https://download.pytorch.org/whl/cpu saves gigabytes of CUDA.
TORCH_INDEX ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo lab test test-system check docs install constraints clean

install: $(STAMP)

# The venv with torch, of which there is a build of its own for machines without a GPU, and the LP baselines.
$(DEMO_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(PIP) -e '.[baselines]'
	touch $@

$(STAMP): $(DEMO_STAMP)
	$(PIP) -e '.[baselines,dev,docs,ray,serve]'
	$(PIP) --no-deps pyNTM==5.0.0  # tests compare with it; it asks for an old networkx, and works with a new one
	touch $@

# 136 nodes and 18,360 demands, on which an LP takes seconds: the models for any network and the first-order engine beside
# it.  Then what the failure of each cable of GEANT costs over a day.
LARGE := --topology topohub:backbone/africa_nosc --traffic gravity:seed=0,count=25,load=4
GEANT := --topology topohub:sndlib/geant --traffic gravity:seed=1,count=24,load=4
demo: $(DEMO_STAMP)
	$(BIN)/teal evaluate $(LARGE) --scheme teal --scheme price-gnn --scheme pdhg --scheme lp-all:solver=highs --limit 1 \
		--out runs/demo/large --overwrite
	@echo "Read: the time of each scheme beside the LP's, at the same satisfied demand; each gap is certified."
	$(BIN)/teal plan $(GEANT) --worst 8 --out runs/demo/plan --overwrite
	@echo "Read: what the failure of each cable certainly costs, of 37 x 24 certified solutions.  Now open"
	@echo "runs/demo/large/report.html and runs/demo/plan/report.html in a browser."

# Real routers in network namespaces; as root, with FRRouting and iproute2 (docs/lab.md).  Five minutes with set-up.
lab: $(DEMO_STAMP)
	$(PIP) -e '.[serve]'
	$(BIN)/python -m deploy.lab run --out runs/lab

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What a newcomer runs: four to five minutes on two cores, kernels compiled; eight with their compilation.
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
