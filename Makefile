# Weft. `make help` lists what there is; the work is done by scripts/.

SITE ?= site
PORT ?= 8080
PREFIX ?= /usr/local
MATRIX ?= 9.6 9.10
# Of `make verify`: random schedules for each of the simulator's scenarios, commands in lockstep on each machine, and
# the soak.
SIM_SECONDS ?= 30
LOCKSTEP ?= 100000
TCP_SEEDS ?= 5000
SOAK_MINUTES ?= 10

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
	@scripts/tutorial

matrix: ## Run the tests on newer compilers in chroots (MATRIX="9.6 9.10"; arm64: that processor, emulated; BENCH="pong delay": measure these instead)
	@scripts/deps matrix
	@[ -z "$(BENCH)" ] || $(MAKE) bench-peers
	@BENCH="$(BENCH)" BENCH_ARGS="$(BENCH_ARGS)" scripts/matrix $(MATRIX)

verify: deb ## What takes too long for every change: planted bugs, long searches and programs in lockstep, sanitizers, a soak, 10^7 tampered packets and requests, transfers of 1 GB, the source distributions, the Debian package, the README's lines, ten other libraries' suites relinked, the static program on Debian 11 to 13, arm64
	@scripts/deps build test
	WEFT_MUTANTS=1 scripts/cabal test --enable-tests weft-core:test:mutants
	WEFT_SIM_SECONDS=$(SIM_SECONDS) scripts/cabal test --enable-tests weft-core:test:wake
	WEFT_LOCKSTEP=$(LOCKSTEP) scripts/cabal test --enable-tests weft-core:test:lockstep weft-core:test:lockstep-sim
	WEFT_TEST_SCALE=334 TASTY_TIMEOUT=1200s WEFT_TEST_STALL=1100 scripts/cabal test --enable-tests weft:test:spec --test-options='-p "/-N2/ && /no thread waits for or reads/"'
	for n in 1 4; do scripts/cabal test --enable-tests weft-core:test:backends weft-tools:test:faults --test-options="+RTS -N$$n -RTS" || exit; done
	@scripts/sanitizers
	@MINUTES=$(SOAK_MINUTES) scripts/soak
	WEFT_FUZZ=10000000 WEFT_FUZZ_SECONDS=60 TASTY_TIMEOUT=1200s scripts/cabal test --enable-tests weft-http:test:http --test-options='-p "/mutated requests/ || /fuzz/"'
	WEFT_FUZZ_SECONDS=60 scripts/cabal test --enable-tests weft-http:test:http2 --test-options='-p fuzz'
	WEFT_TCP_MUTATIONS=10000000 scripts/cabal test --enable-tests weft-tcp:test:tcp --test-options='-p wire'
	WEFT_TCP_SEEDS=$(TCP_SEEDS) TASTY_TIMEOUT=1200s WEFT_TEST_STALL=1100 scripts/cabal test --enable-tests weft-tcp:test:tcp --test-options='-p byte-exact'
	WEFT_TCP_LARGE=1 scripts/cabal test --enable-tests weft-tcp:test:tcp-kernel
	@scripts/sdist
	@scripts/deps matrix
	@RELEASES='bullseye bookworm trixie' scripts/static
	@scripts/matrix arm64
	@scripts/try-deb
	@scripts/deps readme
	@scripts/try-readme
	@scripts/deps suites
	@scripts/other-suites

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
