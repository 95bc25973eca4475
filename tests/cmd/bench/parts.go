package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/perf/benchfmt"
)

// part is a micro-benchmark of the product, and what a release must hold.
type part struct {
	what    string
	name    string // of the benchmark, with its package's last element in front
	unit    string // of benchfmt: sec/op, B/s, allocs/op, or a metric of its own
	allowed float64
	most    bool // allowed is the most, not the least
	against string
}

// The units that parts are shown in, with what one is in benchfmt's.
var shownUnits = map[string]struct {
	unit string
	size float64
}{
	"sec/op": {"µs", 1e-6}, "B/s": {"GB/s", 1e9}, "GB/cpu-s": {"GB/s", 1}, "×raw": {"×", 1}, "allocs/op": {"allocs", 1}, "rec/s": {"/s", 1},
}

const hashed = "auditlog.Verify/1034B/sha256"

// parts are the benchmarks beside the budgets. Those whose speed is in bytes
// are also shown against SHA-256 of records of 1 KB in the same run.
var parts = []part{
	{"SHA-256 of 1 KB", hashed, "GB/cpu-s", 0, false, ""},
	{"scan, text of 64 KB", "mcp.Scan/text-64k", "B/s", 1, false, hashed},
	{"scan, text of 1 MB", "mcp.Scan/text-1m", "B/s", 1, false, hashed},
	{"scan, dense JSON of 64 KB", "mcp.Scan/dense-64k", "B/s", 0, false, hashed},
	{"scan, dense JSON of 1 MB", "mcp.Scan/dense-1m", "B/s", 0, false, hashed},
	{"scan, allocations", "mcp.Scan/dense-64k", "allocs/op", 0, true, ""},
	{"canonical body of 1 KB", "canon.Append/1KB", "sec/op", 6.5, true, ""},
	{"canonical body, allocations", "canon.Append/1KB", "allocs/op", 0, true, ""},
	{"seal of 1 KB", "auditlog.Seal/1024", "sec/op", 1.8, true, ""},
	{"seal, allocations", "auditlog.Seal/1024", "allocs/op", 0, true, ""},
	{"redaction without a match, text of 64 KB", "redact.Redact/text_64KB", "B/s", 0.3, false, "mcp.Scan/text-64k"},
	{"redaction without a match, dense JSON of 64 KB", "redact.Redact/dense_64KB", "B/s", 0.3, false, "mcp.Scan/dense-64k"},
	{"policy decision, 100 rules", "policy.Decide/rules", "sec/op", 5, true, ""},
	{"append, written, 64 writers, against write", "auditlog.Append/written/64", "×raw", 0, false, ""},
	{"append, durable, 1 writer, against write and flush", "auditlog.Append/durable/1", "×raw", 0, false, ""},
	{"append, durable, 64 writers, against write and flush", "auditlog.Append/durable/64", "×raw", 0, false, ""},
	{"verify, core, records of 1 KB", "auditlog.Verify/1034B/core", "GB/cpu-s", 0.6, false, hashed},
	{"verify, whole, records of 1 KB", "auditlog.Verify/1034B/command-jobs1", "GB/cpu-s", 0.4, false, hashed},
	{"verify, whole, records of 8 KB", "auditlog.Verify/8198B/command-jobs1", "GB/cpu-s", 0.4, false, hashed},
}

// measureParts runs the product's benchmarks, which are in its own packages,
// and returns the best of their runs: what disturbs a run only slows it.
func measureParts(ctx context.Context, root, length string) (map[string]map[string]float64, error) {
	goTest := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^Benchmark(Seal|Append|Verify|Scan|Redact|Decide)$",
		"-benchtime", length, "-count", "3",
		"./auditlog", "./auditlog/canon", "./caddymodule/mcp", "./caddymodule/redact", "./caddymodule/policy")
	goTest.Dir, goTest.Stderr = root, os.Stderr
	out, err := goTest.Output()
	if err != nil {
		return nil, fmt.Errorf("the benchmarks of the parts: %w\n%s", err, out)
	}
	measured := make(map[string]map[string]float64)
	results := benchfmt.NewReader(bytes.NewReader(out), "go test")
	for results.Scan() {
		r, ok := results.Result().(*benchfmt.Result)
		if !ok {
			continue
		}
		pkg := r.GetConfig("pkg")
		base, rest := r.Name.Parts()
		name := pkg[strings.LastIndexByte(pkg, '/')+1:] + "." + string(base)
		for _, p := range rest {
			if p[0] != '-' {
				name += string(p)
			}
		}
		if measured[name] == nil {
			measured[name] = make(map[string]float64)
		}
		for _, v := range r.Values {
			old, known := measured[name][v.Unit]
			if least := v.Unit == "sec/op" || v.Unit == "allocs/op"; !known || (least && v.Value < old) || (!least && v.Value > old) {
				measured[name][v.Unit] = v.Value
			}
		}
	}
	return measured, results.Err()
}

// printParts prints the parts beside their budgets and ratios.
func printParts(measured map[string]map[string]float64) error {
	var missing error
	fmt.Printf("\n%-52s %12s %12s %8s\n", "part", "allowed", "measured", "ratio")
	for _, p := range parts {
		raw, ok := measured[p.name][p.unit]
		if !ok {
			missing = errors.Join(missing, fmt.Errorf("the benchmark %s did not report %s", p.name, p.unit))
			continue
		}
		shown := shownUnits[p.unit]
		value := raw / shown.size
		allowed, mark := "", ""
		switch {
		case p.most:
			allowed = "≤ " + fmt.Sprintf("%g %s", p.allowed, shown.unit)
			if value > p.allowed {
				mark = "  over"
			}
		case p.allowed > 0:
			allowed = "≥ " + fmt.Sprintf("%g %s", p.allowed, shown.unit)
			if value < p.allowed {
				mark = "  under"
			}
		}
		ratio := ""
		if p.against != "" {
			ratio = fmt.Sprintf("%.2f", bytesPerSecond(measured[p.name])/bytesPerSecond(measured[p.against]))
		}
		fmt.Printf("%-52s %12s %12s %8s%s\n", p.what, allowed, fmt.Sprintf("%.2f %s", value, shown.unit), ratio, mark)
	}
	fmt.Println("ratio: of redaction to the scan of the same text, of the others to SHA-256")
	return missing
}

// bytesPerSecond is the speed of a benchmark: of a second of a core where that
// was measured, which other programs on the machine do not change.
func bytesPerSecond(values map[string]float64) float64 {
	if perCore, ok := values["GB/cpu-s"]; ok {
		return perCore * 1e9
	}
	return values["B/s"]
}
