# Weft. `make help` lists what there is; the work is done by scripts/.

SITE ?= site
PORT ?= 8080
PREFIX ?= /usr/local
MATRIX ?= 9.6 9.10

.DEFAULT_GOAL := help
.PHONY: help deps build suites serve install static image deb relink-flags test check format haddock tutorial matrix verify soak bench bench-peers clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## Install what building needs, where it is missing (Debian)
	@scripts/deps build

build: deps ## Build every package and put the programs into bin/
	@scripts/build all

serve: deps ## Serve SITE (default: site) on PORT (default: 8080)
	@scripts/build weft
	bin/weft serve "$(SITE)" --port "$(PORT)"

install: ## Install the program weft below PREFIX (default: /usr/local) [DESTDIR]
	@[ -x bin/weft ] || { scripts/deps build && scripts/build weft; }
	@scripts/install "$(PREFIX)" "$(DESTDIR)"

static: deps ## Link the program weft into one file that needs no other, bin/static/weft, and try it
	@scripts/static

image: static ## Make a container image of it, bin/weft-image.tar, without a daemon
	@scripts/image

deb: deps ## Build the Debian packages of weft and weft-bench into bin/
	@scripts/build programs
	@scripts/deb

relink-flags: deps ## Write bin/weft-relink.rsp, with which plain ghc links programs on Weft
	@scripts/relink-flags

suites: ## Build every package with its test suites
	@scripts/deps build test frameworks peers browser
	@if scripts/build tests; then echo "1 passed, 0 failed, 0 skipped"; else echo "0 passed, 1 failed, 0 skipped"; false; fi

test: ## Run all test suites (SUITES=name..., TEST_ARGS='-p pattern')
	@scripts/deps build test frameworks peers browser
	@scripts/test

check: ## Formatter, hlint, the shape of modules and packages, what documents say
	@scripts/deps build check
	@scripts/check

format: ## Rewrite Haskell sources in the project's format
	@scripts/deps check
	@scripts/format inplace

haddock: deps ## Build the documentation into bin/doc/; every exported name must have some
	@scripts/haddock

tutorial: build ## Compile and run the programs of the tutorial
	@scripts/deps build test frameworks
	@scripts/tutorial

matrix: ## Run the tests on newer compilers in chroots (MATRIX="9.6 9.10"; arm64: that processor, emulated; BENCH="pong delay": measure these instead)
	@scripts/deps matrix
	@[ -z "$(BENCH)" ] || $(MAKE) bench-peers
	@BENCH="$(BENCH)" BENCH_ARGS="$(BENCH_ARGS)" scripts/matrix $(MATRIX)

verify: ## What takes too long for every change, about four hours: planted bugs, long searches, sanitizers, a soak, fuzzing, source distributions, Debian packages, the static program, the README's lines, other projects' suites, arm64 (STEPS="wake deb"; goes on where it was; AGAIN=1: from the beginning)
	@scripts/verify $(STEPS)

soak: deps ## Everything at once under faults, on each back end (HOURS=1, or MINUTES=3; TOGETHER=1, SEED=n, WEFT_BACKEND=name)
	@scripts/deps build test
	@HOURS="$(HOURS)" MINUTES="$(MINUTES)" SEED="$(SEED)" TOGETHER="$(TOGETHER)" scripts/soak

bench: build bench-peers ## Run every benchmark
	bin/weft-bench all

bench-peers: ## Build the programs that Weft is measured against
	@scripts/deps build bench
	$(MAKE) -C bench/peers

clean: ## Remove what was built (matrix chroots stay)
	rm -rf dist-newstyle bin
