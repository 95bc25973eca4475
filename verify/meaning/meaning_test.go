package meaning_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/legacy"
	"github.com/caddy-mcp-audit/mcp-audit/verify/meaning"
)

func TestEveryFindingIsExplained(t *testing.T) {
	names := slices.Concat(auditlog.FindingNames(), legacy.FindingNames())
	if len(names) < 70 {
		t.Fatalf("only %d findings", len(names))
	}
	jargon := []string{"hash", "Merkle", "MAC ", "HMAC", "JCS", "inode", "nonce", "RFC", "canonical", "leaf", "root"}
	for _, name := range names {
		text, ok := meaning.Finding(name)
		if !ok {
			t.Errorf("%s is not explained", name)
			continue
		}
		for what, s := range map[string]string{"explanation": text.What, "remedy": text.Do} {
			if len(s) < 20 || !strings.HasSuffix(s, ".") || strings.ToUpper(s[:1]) != s[:1] {
				t.Errorf("the %s of %s is no sentence: %q", what, name, s)
			}
			for _, word := range jargon {
				if strings.Contains(s, word) {
					t.Errorf("the %s of %s says %q", what, name, word)
				}
			}
		}
		if strings.Contains(text.What, name) {
			t.Errorf("%s is explained by itself", name)
		}
	}
	if _, ok := meaning.Finding("no_such_finding"); ok {
		t.Error("a finding that does not exist is explained")
	}
}

func TestEveryClassHasASeverity(t *testing.T) {
	for _, class := range []string{auditlog.ClassTampered, auditlog.ClassDiverges, auditlog.ClassIncomplete, auditlog.ClassWarning} {
		if meaning.Severity(class) == "" {
			t.Errorf("class %s", class)
		}
	}
}
