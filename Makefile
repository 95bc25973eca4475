# mcp-audit. `make` alone lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The tools that are not the product's, each at one release. xcaddy and Caddy
# are pinned by xcaddy.json and go.mod, npm's packages by tests/npm.
GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
CYCLONEDX_GOMOD := github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0

# One set of flags for every call of go, so that all share one build cache.
# xcaddy builds with the same, see caddymodule/cmd/xcaddy.
export GOFLAGS := -buildvcs=false -trimpath
export GOTOOLCHAIN := local
export CGO_ENABLED := 1
TAGS := nobadger,nomysql,nopgx

MODULE := github.com/caddy-mcp-audit/mcp-audit
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
# The time of the commit, not of the build: the same source gives the same program.
BUILD_TIME ?= $(shell TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null || echo unknown)
STAMP := -X $(MODULE)/verify/release.version=$(VERSION) -X $(MODULE)/verify/release.commit=$(COMMIT) -X $(MODULE)/verify/release.buildTime=$(BUILD_TIME)

PREFIX ?= /usr/local
FUZZTIME ?= 60s

.PHONY: help
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/caddy, bin/mcp-audit, bin/mcp-audit-shim and bin/notes-server
	go build -tags $(TAGS) -ldflags '-s -w $(STAMP)' -o bin/ ./caddymodule/cmd/caddy ./verify/cmd/mcp-audit ./shim/cmd/mcp-audit-shim
	cd examples && go build -ldflags '-s -w' -o ../bin/ ./notes-server

.PHONY: shim-small
shim-small: ## build bin/mcp-audit-shim-small, the shim that needs a running Caddy, without SQLite, cgo and Caddy
	CGO_ENABLED=0 go build -tags mcpaudit_small -ldflags '-s -w $(STAMP)' -o bin/mcp-audit-shim-small ./shim/cmd/mcp-audit-shim

# What cannot be run here is compiled and vetted. Without cgo there is no SQLite:
# such a program says so where it is asked for one.
.PHONY: cross
cross: ## compile and vet all programs for macOS and Windows
	for target in darwin/arm64 windows/amd64; do \
		echo "== $$target"; \
		GOOS="$${target%/*}" GOARCH="$${target#*/}" CGO_ENABLED=0 go vet -tags $(TAGS) ./... ; \
		GOOS="$${target%/*}" GOARCH="$${target#*/}" CGO_ENABLED=0 go build -tags $(TAGS) -o bin/cross/ ./caddymodule/cmd/caddy ./verify/cmd/mcp-audit ./shim/cmd/mcp-audit-shim ; \
		GOOS="$${target%/*}" GOARCH="$${target#*/}" CGO_ENABLED=0 go vet -tags mcpaudit_small ./shim/cmd/mcp-audit-shim ; \
	done; \
	rm -rf bin/cross

.PHONY: install
install: build ## install the programs under PREFIX (default /usr/local)
	install -d "$(DESTDIR)$(PREFIX)/bin"
	install -m 0755 bin/mcp-audit bin/mcp-audit-shim "$(DESTDIR)$(PREFIX)/bin/"
	install -m 0755 bin/caddy "$(DESTDIR)$(PREFIX)/bin/caddy-mcp-audit"

# The same source gives the same bytes: the archives carry the commit's time. Only
# linux/amd64 has SQLite; there is no C compiler here for the others. The first
# build for a target compiles all of Caddy, some minutes each.
TARGETS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64
SBOM ?= $(CYCLONEDX_GOMOD)
.PHONY: release
release: ## archives for TARGETS (default: all five), SHA256SUMS and an SBOM, into dist/
	go run ./caddymodule/cmd/release -version '$(VERSION)' -time '$(BUILD_TIME)' -output dist -targets '$(TARGETS)' \
		-tags $(TAGS) -ldflags '-s -w $(STAMP)' -sbom '$(SBOM)'

.PHONY: xcaddy
xcaddy: ## build bin/caddy-xcaddy from xcaddy.json as users of xcaddy do
	go run ./caddymodule/cmd/xcaddy -output bin/caddy-xcaddy -ldflags '$(STAMP)'
	./bin/caddy-xcaddy list-modules | grep -x http.handlers.mcp_audit

.PHONY: check
check: ## format, vet, build and race-test the product
	@unformatted="$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go'))"; \
	if [[ -n "$$unformatted" ]]; then echo "gofmt these files: $$unformatted" >&2; exit 1; fi
	go vet -tags $(TAGS) ./...
	go build -tags $(TAGS) ./...
	@# The shim's end-to-end tests run whole programs against the shim's own
	@# time limits; the race detector would make those programs miss them.
	go test -race -short -timeout 20m -tags $(TAGS) $$(go list -tags $(TAGS) ./... | grep -v /shim/cmd/)
	go test -count=1 -timeout 20m -tags $(TAGS) ./shim/cmd/...
	@# Exhaustive sweeps take ten times as long under the race detector, and it
	@# adds allocations of its own: these packages run once more, in full.
	go test -count=1 -timeout 20m ./auditlog/... ./verify/... ./caddymodule/mcp ./caddymodule/policy ./caddymodule/redact ./caddymodule/capability

.PHONY: test
test: check build shim-small node_modules browser ## everything: check, the examples and the black-box tests with real clients and servers
	cd examples && go vet ./... && go test ./...
	cd tests && go vet ./... && MCP_AUDIT_BIN='$(CURDIR)/bin' go test -timeout 20m ./...

# The dashboard is tested in a headless browser.
.PHONY: browser
browser:
	@command -v chromium chromium-browser google-chrome >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } || \
		{ echo "install Chromium for the tests of the dashboard, as root: apt-get install -y --no-install-recommends chromium" >&2; exit 1; }

.PHONY: conformance
conformance: build ## run the public MCP conformance suite, direct and through the product
	MCP_AUDIT_BIN='$(CURDIR)/bin' tests/conformance/run.sh

.PHONY: node_modules
node_modules: tests/npm/node_modules/.package-lock.json

tests/npm/node_modules/.package-lock.json: tests/npm/package.json tests/npm/package-lock.json
	cd tests/npm && npm ci --no-fund --no-audit --loglevel=error
	touch $@

.PHONY: lint
lint: ## run golangci-lint
	go run $(GOLANGCI_LINT) run ./...
	cd examples && go run $(GOLANGCI_LINT) run ./...
	cd tests && go run $(GOLANGCI_LINT) run ./...

# Only packages that do not import Caddy: instrumenting all of Caddy takes minutes.
.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (default 60s) each
	@for package in $$(go list -tags $(TAGS) ./...); do \
		if go list -tags $(TAGS) -test -deps "$$package" | grep '^github.com/caddyserver/caddy' >/dev/null; then continue; fi; \
		targets="$$(go test -tags $(TAGS) -list '^Fuzz' "$$package" | grep '^Fuzz' || true)"; \
		for target in $$targets; do \
			echo "== $$package $$target"; \
			go test -tags $(TAGS) -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x "$$package"; \
		done; \
	done

# Rounds of SIGKILL under load, on both stores: no acknowledged record may be
# lost, and each log has to verify. `make check` runs 30 rounds of each.
KILL_ROUNDS ?= 200
.PHONY: kill-loop
kill-loop: ## kill writers under load KILL_ROUNDS (default 200) times on each store, and verify
	for store in jsonl sqlite; do \
		AUDITLOG_TEST_STORE=$$store AUDITLOG_KILL_ROUNDS=$(KILL_ROUNDS) \
			go test -count=1 -timeout 30m -v -run '^TestNothingAcknowledgedIsLostWhenProcessesAreKilled$$' ./auditlog; \
	done

.PHONY: bench
bench: build ## measure direct, plain Caddy and audited, and print the ratios
	cd tests && go run ./cmd/bench -bin '$(CURDIR)/bin'

# A log of RECORDS records needs about 1.5 KB of temporary space for each.
RECORDS ?= 10000000
.PHONY: bench-large
bench-large: ## measure verify, prove, tail, index, export and the dashboard on RECORDS (default 10000000) records
	MCP_AUDIT_LARGE_RECORDS=$(RECORDS) go test -count=1 -v -timeout 2h -run '^TestVeryManyRecordsInBoundedMemory$$' ./verify/cli

SOAK ?= 10m
.PHONY: soak
soak: build ## load, faults and reloads for SOAK (default 10m): nothing may be lost or leak
	cd tests && MCP_AUDIT_BIN='$(CURDIR)/bin' MCP_AUDIT_SOAK=$(SOAK) go test -count=1 -v -timeout 25h -run '^TestSoak$$' .

.PHONY: demo
demo: build ## show the product: audited calls over HTTP and stdio, the records, tampering found
	cd examples && go run ./demo -bin '$(CURDIR)/bin'

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist tests/npm/node_modules tests/conformance/npm/node_modules tests/conformance/.work
