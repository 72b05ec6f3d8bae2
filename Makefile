# Weft. `make help` lists what there is; the work is done by scripts/.

SITE ?= site
PORT ?= 8080
MATRIX ?= 9.6 9.10

.DEFAULT_GOAL := help
.PHONY: help deps build serve relink-flags test check format matrix bench bench-peers clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## Install what building needs, where it is missing (Debian)
	@scripts/deps build

build: deps ## Build every package and put the programs into bin/
	@scripts/build all

serve: deps ## Serve SITE (default: site) on PORT (default: 8080)
	@scripts/build weft
	bin/weft serve $(SITE) --port $(PORT)

relink-flags: deps ## Write bin/weft-relink.rsp, with which plain ghc links programs on Weft
	@scripts/relink-flags

test: ## Run all test suites (SUITES=name..., TEST_ARGS='-p pattern')
	@scripts/deps build test browser
	@scripts/test

check: ## Formatter, hlint and the shape of the module tree
	@scripts/deps build check
	@scripts/check

format: ## Rewrite Haskell sources in the project's format
	@scripts/deps check
	@scripts/format inplace

matrix: ## Run the tests on newer compilers in chroots (MATRIX="9.6 9.10")
	@scripts/deps matrix
	@scripts/matrix $(MATRIX)

bench: build bench-peers ## Run every benchmark
	bin/weft bench all

bench-peers: ## Build the programs that Weft is measured against
	@scripts/deps build bench
	$(MAKE) -C bench/peers

clean: ## Remove what was built (matrix chroots stay)
	rm -rf dist-newstyle bin
