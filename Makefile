# Every target does its own set-up: `make demo` and `make test` work on a fresh clone with Python and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What has been installed: torch; further what the commands need; everything.
TORCH_STAMP := $(VENV)/.installed-torch
DEMO_STAMP := $(VENV)/.installed-for-demo
STAMP := $(VENV)/.installed
# The kernels' machine code, for this machine.  Where sources change, what they change is compiled at its first use.
MACHINE_CODE := $(VENV)/.machine-code
# Where torch comes from.  Without a GPU, TORCH_INDEX=https://download.pytorch.org/whl/cpu saves gigabytes of CUDA.
TORCH_INDEX ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# Bytecode is kept, whatever the surroundings say: the tests start hundreds of processes, and without it each of them
# compiles the sources of torch and others anew, half of the time of `import teal`.
unexport PYTHONDONTWRITEBYTECODE
# uv installs 180 packages in 15 s, pip in 80 s.  Certificates are the system's, as for pip.
UV := VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --native-tls -c constraints.txt
# Of what every command imports: the first command would wait 6 s for it.
WRITE_BYTECODE := $(BIN)/python -c "import teal.allocation.solve_command, teal_study.evaluation.evaluate_command"
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadgroup
# Three workers on two cores: clusters and killed processes are waited for more than computed.  Two of them add numbers
# in another order, as OpenBLAS does on older processors: no test may depend on the last bits of a sum.
WORKERS := --tx popen --tx popen//env:OPENBLAS_CORETYPE=Haswell --tx popen//env:OPENBLAS_CORETYPE=Sandybridge
ALL := $(BIN)/python -m pytest $(WORKERS) --dist loadgroup --no-loadscope-reorder
# Each worker has a half of the files, so that they seldom wait for each other to compile the same kernel.
QUICK := --dist worksteal -m "not system and not slow"

.PHONY: help environment install wheel demo lab check test test-core test-system test-all durations docs figures figures-check constraints \
  clean

help:  ## what the targets do (this text)
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(TORCH_STAMP):
	@echo "installing into $(VENV): torch first, of which there is a build of its own for machines without a GPU"
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(PIP) uv
	@touch $@

$(DEMO_STAMP): $(TORCH_STAMP) pyproject.toml constraints.txt
	$(UV) -e '.[baselines]'
	$(WRITE_BYTECODE)
	@touch $@

$(STAMP): $(TORCH_STAMP) pyproject.toml constraints.txt
	$(UV) -e '.[baselines,dev,docs,ray,serve]'
	$(UV) --no-deps pyNTM==5.0.0  # tests compare with it; it asks for an old networkx, and works with a new one
	$(WRITE_BYTECODE)
	@touch $@ $(DEMO_STAMP)

$(MACHINE_CODE): $(STAMP)
	@echo "compiling the kernels for this machine, two minutes on two cores: then nothing waits for them"
	$(BIN)/python -m teal.app.machine_code --best
	@touch $@

environment: $(STAMP)  ## everything, into .venv

install: $(MACHINE_CODE)  ## everything, into .venv, and the kernels' machine code

wheel: $(STAMP)  ## the wheel, in dist, with machine code for all levels of processors that this machine has
	$(BIN)/python -m build --wheel --no-isolation

# A network that no model has seen in training, on which an LP takes seconds: the models for any network and the
# first-order engine beside it.  Then what the failure of each cable of GEANT costs over a day.
LARGE := --topology topohub:gabriel/150/9 --traffic gravity:seed=0,count=25,load=4
GEANT := --topology topohub:sndlib/geant --traffic gravity:seed=1,count=24,load=4
demo: $(DEMO_STAMP)  ## two minutes: learned schemes beside an LP, and a plan, as pages to open in a browser
	$(BIN)/teal evaluate $(LARGE) --scheme teal --scheme price-gnn --scheme pdhg --scheme lp-all:solver=highs --limit 1 \
		--out runs/demo/large --overwrite
	@echo "Open runs/demo/large/report.html in a browser.  Read: the time of each scheme beside the LP's, at the same"
	@echo "satisfied demand; each gap is certified.  Next, what the failure of each cable of GEANT certainly costs:"
	$(BIN)/teal plan $(GEANT) --worst 8 --out runs/demo/plan --overwrite
	@echo "Open runs/demo/plan/report.html too: 37 failures x 24 matrices, certified."

lab: $(DEMO_STAMP)  ## real routers in network namespaces: as root, with FRRouting and iproute2 (docs/lab.md); five minutes
	$(UV) -e '.[baselines,serve]'
	$(BIN)/python -m deploy.lab run --out runs/lab

check: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: $(STAMP)  ## what a newcomer runs: some minutes on two cores, set-up and all
	$(PYTEST) $(QUICK)

CORE := allocation app formats network nn pathops problem proofs runtime schemes solvers
test-core: $(STAMP)  ## the tests of the core's rooms, where no package over it can be imported
	TEAL_WITHOUT=teal_availability,teal_ip,teal_next,teal_serve,teal_study $(PYTEST) $(QUICK) $(CORE:%=tests/%)

# Clusters, killed processes, overload, the wheel, long training, browsers, and CUDA kernels in the simulator.
test-system: $(STAMP)  ## the other tests: slow ones, clusters, killed processes, the wheel, browsers, long training
	$(PYTEST) -m "system or slow"

test-all: $(STAMP)  ## all tests in one run
	$(ALL)

durations: $(STAMP)  ## all tests; how long they take is stored, and later runs begin with the longest
	$(ALL) --store-durations

docs: $(STAMP)  ## the site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

DATA ?=
MINUTES ?= 60
figures: $(STAMP)  ## figures of the pages that are older than their code, made anew: DATA=FOLDER MINUTES=60
	$(BIN)/python benchmarks/remake.py --data "$(DATA)" --minutes $(MINUTES)

figures-check: $(STAMP)  ## list stale figures of the pages; fails where the commit of one is missing
	$(BIN)/python benchmarks/remake.py --check

# After a deliberate upgrade.  CUDA's own packages are left to torch, whose builds pin them.
constraints: $(STAMP)  ## write down the installed versions
	$(BIN)/python -m pip freeze --all --exclude-editable | sed 's/+cpu//' \
		| grep -Ev '^(pip|triton|cuda-[a-z]*|nvidia-.*)==' > constraints.txt

clean:  ## remove .venv, runs, build, dist and machine code
	rm -rf $(VENV) runs build dist teal/_shipped
