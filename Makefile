# Every target does its own set-up; a fresh clone needs python3 (3.11 or newer, with venv) and make.
# Another Python: make test PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SOURCES := pyproject.toml CMakeLists.txt $(shell find csrc -type f)

.PHONY: demo test lint sanitize tsan schemathesis fuzz-schemas fuzz-bodies fuzz-files transformers playground-picture \
  serve-mixed serve-load serve-storm serve-soak clean

demo: $(INSTALLED)
	@$(BIN)/draftgraph pull smollm2-135m
	$(BIN)/python examples/demo.py

# With DRAFTGRAPH_OFFLINE=1, tests that need the default model say so and are skipped where it is not in the cache.
test: lint
	@test -n "$$DRAFTGRAPH_OFFLINE" || $(BIN)/draftgraph pull smollm2-135m
	$(BIN)/python -m pytest

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The C++ core's own tests under AddressSanitizer with UndefinedBehaviorSanitizer, and under ThreadSanitizer.
sanitize: FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=undefined
tsan: FLAGS := -fsanitize=thread
sanitize tsan: $(INSTALLED)
	$(BIN)/cmake -S . -B build/$@ -DDRAFTGRAPH_CORE_TESTS=ON -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="-O1 -g $(FLAGS)" >/dev/null
	$(BIN)/cmake --build build/$@ --parallel 2
	build/$@/core_test

# A hundred made-up requests, valid and not, for every operation of the server: takes some minutes.
schemathesis: $(INSTALLED)
	$(BIN)/python -m pytest -s tests/server/test_schema.py --schema-examples 100

# What is made to end, hold up or mislead us, some minutes each: JSON schemas; ten thousand bodies of requests to a real server;
# five thousand model files of both formats. An hour: make fuzz-schemas FUZZ="--minutes 60 --seed 1"
fuzz-schemas fuzz-bodies fuzz-files: fuzz-%: $(INSTALLED)
	PYTHONPATH=tests $(BIN)/python -m fuzz.fuzz_$* $(FUZZ)

# Every family beside transformers, which it installs.
transformers: $(INSTALLED)
	$(BIN)/python -m pip install --quiet torch==2.13.0 transformers
	$(BIN)/python -m pytest tests/e2e/test_transformers.py

# A server under load, with a verdict for each promise; leave the machine alone meanwhile. mixed: sixteen texts together
# are those written alone. load: throughput, delays, 200 at once. storm: clients that misbehave. soak: five minutes.
serve-mixed serve-load serve-storm serve-soak: serve-%: $(INSTALLED)
	@$(BIN)/draftgraph pull smollm2-135m
	$(BIN)/python benchmarks/load_server.py $* --out benchmarks/results/server_$*.json

# The README's picture of the playground, taken by the code of its tests: needs Chromium and chromedriver.
playground-picture: $(INSTALLED)
	@$(BIN)/draftgraph pull smollm2-135m
	PYTHONPATH=tests $(BIN)/python -m support.playground docs/pictures/playground.png

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "error: $(PYTHON) is missing or older than 3.11; name a newer one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "error: $(PYTHON) has no venv; install it (on Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(INSTALLED): $(BIN)/python $(SOURCES)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@
