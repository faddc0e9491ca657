# `make demo` and `make test` do all the set-up that they need; `make help` lists the rest.
PYTHON ?= python3
# How many nodes the node tests run on at once; they mostly wait.
NODES ?= 2
MINUTES ?= 60
EXAMPLES ?= 2000
SECONDS ?= 60
TARGETS ?= claim checkpoint configuration layouts requests health
FUZZED := tests/faults/test_hostile.py tests/unit/cli/test_hostile_words.py tests/unit/config tests/unit/migrate \
	tests/unit/partition/test_configs.py tests/unit/kit/test_http.py tests/unit/kit/test_logs.py tests/unit/kit/test_sealed.py \
	tests/unit/kit/test_shallow.py tests/unit/kube/test_kubeconfig.py tests/unit/dra/test_claims.py tests/unit/dra/test_configs.py \
	tests/unit/dra/test_values.py tests/unit/allocation/test_checkpoint.py tests/unit/cdi tests/unit/reporting/test_labels.py \
	tests/unit/reporting/metrics/test_families.py tests/unit/health/test_record.py
BIN := .venv/bin
READY := .venv/.ready
# Not --quiet: what is not said then is not counted as broken either.
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

.DEFAULT_GOAL := help
.PHONY: help demo rig rig-down test test-node test-skew test-nfd test-kueue test-numa test-kai test-runtimes test-fabric test-deaths test-gpu soak life crash fuzz fuzz-guided check docs format bench bench-short bench-cluster release audit protos lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## the agent on a simulated node with 8 GPUs: no GPU, no cluster, no root (ARGS=--hold keeps it serving)
	@$(BIN)/node-agent demo $(ARGS)

test: $(READY) ## the tests that need neither a GPU nor a cluster
	$(BIN)/python -m pytest $(ARGS)

test-node: $(READY) ## the tests on a real Kubernetes node, built and started here (Go, root)
	$(BIN)/python -m tests.node.rig build
	$(BIN)/python -m pytest -m node -n $(NODES) --dist worksteal tests/node $(ARGS)

soak: $(READY) ## mixed load on a real node for MINUTES=60: growth of the agent, double grants, what is left behind (Go, root)
	$(BIN)/python -m tests.node.soak --minutes $(MINUTES) $(ARGS)

life: $(READY) ## a long life in MINUTES=60: pods, claims, faults, reloads and restarts on one agent, and what its memory consists of
	$(BIN)/python -m tests.life --minutes $(MINUTES) $(ARGS)

fuzz: $(READY) ## all that reads what strangers write, EXAMPLES=2000 times each
	EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest $(FUZZED) $(ARGS)

fuzz-guided: $(READY) ## what strangers may send, guided by the code that it reaches, SECONDS=60 each (fetches atheris; TARGETS="claim requests")
	$(BIN)/uv pip install --quiet --target build/atheris atheris==3.0.0
	for target in $(TARGETS); do PYTHONPATH=build/atheris $(BIN)/python -m tests.guided $$target $(SECONDS) || exit 1; done

test-skew: $(READY) ## the main cases on the oldest Kubernetes that is served (Go, root; builds it once, some 12 minutes)
	$(BIN)/python -m pytest -m skew tests/node/test_skew.py $(ARGS)

test-nfd: $(READY) ## labels and topology object beside the real Node Feature Discovery (Go, root; builds it once)
	$(BIN)/python -m pytest -m nfd tests/node/test_nfd.py $(ARGS)

test-kueue: $(READY) ## jobs with limits and claims under the quotas of the real Kueue (Go, root; builds it once)
	$(BIN)/python -m pytest -m kueue tests/node/test_kueue.py $(ARGS)

test-kai: $(READY) ## pods placed by the real KAI Scheduler, whole GPUs and fractions (Go, root; builds it once)
	$(BIN)/python -m pytest -m kai tests/node/test_kai.py $(ARGS)

test-numa: $(READY) ## pods placed by NUMA node by the real scheduler-plugins (Go, root; builds it once)
	$(BIN)/python -m pytest -m scheduler_plugins tests/node/test_scheduler_plugins.py $(ARGS)

test-runtimes: $(READY) ## pods on the real containerd 1.7, and a container of podman's, by the agent's CDI specs (Go, root; builds it once)
	$(BIN)/python -m pytest -m runtimes tests/node/test_runtimes.py $(ARGS)

test-deaths: $(READY) ## kubelet and API server killed in the middle of changes, and the agent at the limit of its memory (Go, root)
	$(BIN)/python -m pytest -m deaths tests/node/test_killed_in_changes.py tests/node/test_outage.py tests/node/test_memory_limit.py $(ARGS)

rig: $(READY) ## a real one-node Kubernetes in the background, with the agent's image on it (Go, root); make rig-down ends it
	@$(BIN)/python -m tests.node.rig start

rig-down: $(READY) ## end it
	@$(BIN)/python -m tests.node.rig stop

test-fabric: $(READY) ## a ComputeDomain over two nodes, its daemons in network namespaces (root)
	$(BIN)/python -m pytest -m node tests/unit/computedomain/test_two_nodes.py $(ARGS)

test-gpu: $(READY) ## the tests on real GPUs (NVIDIA driver)
	$(BIN)/python -m pytest -m gpu tests $(ARGS)

crash: $(READY) ## the agent killed at every boundary that it crosses, and random histories (ARGS="prepare start" for these)
	$(BIN)/python -m tests.crash $(ARGS)

check: $(READY) ## format, lint, types, layers, documents
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.documents
	$(SITE)

docs: $(READY) ## the documents as a site, in build/site
	$(SITE)
	@echo "read build/site/index.html, or with search: $(PYTHON) -m http.server --directory build/site"

format: $(READY) ## put the code in form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) ## one table of figures, with the machine's facts
	$(BIN)/python -m benchmarks $(ARGS)

bench-cluster: $(READY) ## what a cluster of agents costs a real API server, etcd and scheduler (Go, root; an hour)
	$(BIN)/python -m tests.node.rig build
	$(BIN)/python -m benchmarks.scale publishers
	$(BIN)/python -m benchmarks.scale scheduler

bench-short: $(READY) ## a minute of figures, and a warning where one is far above that of benchmarks/baseline.json
	-timeout 120 $(BIN)/python -m benchmarks --quick --compare Allocate labels "CDI and inventory"

release: $(READY) ## wheel, source archive, bill of materials and checksums in dist, from the last commit (ARGS=--unreleased)
	$(BIN)/python -m tools.release $(ARGS)

audit: $(READY) ## known vulnerabilities of what the lock has (asks api.osv.dev)
	$(BIN)/uv audit --locked $(ARGS)

protos: $(READY) ## generate node_agent/wire from protos/ and cdi/schema/
	$(BIN)/python protos/generate.py
	$(BIN)/python cdi/schema/generate.py

lock: $(READY) ## lock the dependencies anew
	$(BIN)/uv lock --upgrade
	echo "uv==$$($(BIN)/uv --version | cut -d' ' -f2)" | $(BIN)/uv pip compile --quiet --generate-hashes --no-header - > tools/bootstrap.txt

clean: ## remove what the set-up made
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(READY): uv.lock pyproject.toml tools/bootstrap.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"Python 3.11 or newer is needed, $(PYTHON) is {v.major}.{v.minor}: make PYTHON=python3.12 …")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement tools/bootstrap.txt
	@$(BIN)/uv sync --quiet --locked --inexact
	@touch $@
