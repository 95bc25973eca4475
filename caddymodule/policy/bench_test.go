package policy_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/policy"
)

var message = []byte(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"write_file","arguments":{"path":"/srv/reports/2026/q3.md","content":"` +
	fmt.Sprintf("%0900d", 0) + `"},"_meta":{"progressToken":1}}}`)

// hundred is a policy of a hundred rules of which the last matches.
func hundred(b *testing.B, when string) *policy.Policy {
	cfg := policy.Config{DefaultDeny: true}
	for i := range 33 {
		cfg.Rules = append(cfg.Rules,
			policy.Rule{ID: fmt.Sprint("A", i), Methods: []string{"tools/call"}, Tools: []string{fmt.Sprint("read_", i, "_*")}, Roles: []string{"operator"}},
			policy.Rule{ID: fmt.Sprint("B", i), Names: []string{fmt.Sprintf("file:///srv/%d/**/*.md", i)}},
			policy.Rule{ID: fmt.Sprint("C", i), Tools: []string{fmt.Sprint("*_", i), "delete_file"}, Subjects: []string{"bob"}})
	}
	cfg.Rules = append(cfg.Rules, policy.Rule{ID: "Z", Allow: true, Tools: []string{"write_*"}, When: when})
	return compile(b, cfg)
}

// The ratio to the strict scan of the same message is what a decision costs.
func BenchmarkDecide(b *testing.B) {
	msgs, _, fault := mcp.Scan(message, nil)
	if fault != nil {
		b.Fatal(fault)
	}
	const scans = 100_000
	list := msgs
	start := time.Now()
	for range scans {
		list, _, _ = mcp.Scan(message, list)
	}
	scan := float64(time.Since(start).Nanoseconds()) / scans
	c := policy.Call{Caller: &policy.Caller{Subject: "alice", Roles: []string{"operator"}}, ClientID: "desktop", ServerID: "files"}
	c.Read(&msgs[0], message)
	for name, when := range map[string]string{"rules": "", "condition": `path_clean(args.path).startsWith("/srv/") && args.path.size() < 100`} {
		b.Run(name, func(b *testing.B) {
			p := hundred(b, when)
			if d := p.Decide(&c); d.RuleID != "Z" || !d.Allow {
				b.Fatalf("%+v", d)
			}
			b.ReportAllocs()
			for b.Loop() {
				p.Decide(&c)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/scan, "scans")
		})
	}
}
