package main

import (
	"fmt"
	"time"
)

// quietCPU is what a request of 1 KB through plain Caddy cost, in microseconds,
// where the budgets were set.
const quietCPU = 103

// printBudgets prints how the run stands to what a release must hold.
func printBudgets(results map[string]*result, checked verification, piped [2]pipe) {
	if base := results["1 KB 16 "+plain]; len(base.cpu) > 0 {
		fmt.Printf("\nThe times below were set on a quiet machine, where plain Caddy costs %d µs a request at 1 KB; here it costs %.0f.\n",
			quietCPU, median(base.cpu))
	}
	fmt.Printf("\n%-58s %12s %12s\n", "budget", "allowed", "measured")
	for _, p := range []struct {
		name string
		µs   float64
	}{{"1 KB", 60}, {"64 KB text", 250}, {"64 KB dense", 700}, {"1 MB text", 4000}, {"1 MB dense", 11000}} {
		base, audited := results[p.name+" 16 "+plain], results[p.name+" 16 "+written]
		added := median(audited.cpu) - median(base.cpu)
		row(fmt.Sprintf("CPU per request over plain Caddy, %s", p.name), "≤", p.µs, added, "µs", len(base.cpu) > 0)
	}
	for _, p := range []struct {
		name  string
		ratio float64
	}{{"1 KB", 0.70}, {"64 KB text", 0.70}, {"64 KB dense", 0.45}} {
		ratio := results[p.name+" 16 "+written].rate() / results[p.name+" 16 "+plain].rate()
		row(fmt.Sprintf("throughput against plain Caddy, 16 connections, %s", p.name), "≥", p.ratio, ratio, "", true)
	}
	ratio := results["1 KB 64 "+durable].rate() / results["1 KB 64 "+written].rate()
	row("throughput of durable against written, 64 connections", "≥", 0.60, ratio, "", true)
	row("verify, per core", "≥", 0.4, checked.perCore(), "GB/s", true)
	row("shim, added to the first answer", "≤", 50, milliseconds(piped[1].first-piped[0].first), "ms", true)
	row("shim, added p50 at 1 KB", "≤", 0.40, milliseconds(piped[1].p50-piped[0].p50), "ms", true)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func row(what, sign string, allowed, measured float64, unit string, known bool) {
	if !known {
		fmt.Printf("%-58s %12s %12s\n", what, sign+" "+number(allowed, unit), "-")
		return
	}
	mark := ""
	if (sign == "≤" && measured > allowed) || (sign == "≥" && measured < allowed) {
		mark = "  over"
		if sign == "≥" {
			mark = "  under"
		}
	}
	fmt.Printf("%-58s %12s %12s%s\n", what, sign+" "+number(allowed, unit), number(measured, unit), mark)
}

func number(v float64, unit string) string {
	text := fmt.Sprintf("%.2f", v)
	if unit == "µs" {
		text = fmt.Sprintf("%.0f", v)
	}
	if unit != "" {
		text += " " + unit
	}
	return text
}
