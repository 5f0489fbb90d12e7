# make run     a conversation from the bundled recording, or AUDIO_IN=… ; files go to OUT_DIR=… (default: out/)
# make serve   a web page to talk from, and WebSockets for other clients, on PORT=8765
# make test    ruff, pyright and all tests
# make bench   how fast, beside others; half an hour
# They set everything up first, once, in .venv. PYTHON=… and TORCH=… choose the Python and the torch of it.

.PHONY: run serve test bench setup lint clean
.DEFAULT_GOAL := run

# The environment's own Python when there is one, else the first that is new enough.
PYTHON ?= $(shell for p in .venv/bin/python python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
SETUP = "$(or $(PYTHON),$(error No Python 3.11 or newer found. Run: sudo apt install python3 python3-venv, or name one: PYTHON=/path/to/python3))" scripts/setup.py

export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Paths are taken relative to where the user stands, which `make -C` would hide.
HERE := $(if $(filter 0w,$(MAKELEVEL)$(findstring w,$(firstword -$(MAKEFLAGS)))),$(PWD),$(CURDIR))
export HERE

define dora-run
@cd "$$HERE" && trap 'is_interrupted=1' INT; \
dora run "$(CURDIR)/$(1)" --log-level info $(2) || { code=$$?; \
	test "$$is_interrupted" || echo "The same command followed by: 2>&1 | grep -m1 'ERROR  ' tells what failed first." >&2; \
	exit $$code; }
endef

run: setup
	$(call dora-run,dataflow.yml,--log-filter sink=stdout)

serve: setup
	$(call dora-run,serve.yml)

test:
	@$(SETUP) --dev
	ruff check
	ruff format --check
	pyright
	python -m pytest

bench:
	@$(SETUP) --dev
	python tests/bench/bench_session.py
	python tests/bench/bench_conversation.py
	python tests/bench/bench_page.py

lint:
	@$(SETUP) --dev
	ruff check --fix
	ruff format
	pyright

setup:
	@$(SETUP)

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
