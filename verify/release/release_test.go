package release

import (
	"strings"
	"testing"
)

func TestTextNamesVersionCommitAndBuildTime(t *testing.T) {
	version, commit, buildTime = "v1.2.3", "abcdef", "2026-05-25T12:00:00Z"
	defer func() { version, commit, buildTime = "", "", "" }()
	if text := Text("mcp-audit"); !strings.HasPrefix(text, "mcp-audit v1.2.3, commit abcdef, built 2026-05-25T12:00:00Z") {
		t.Error(text)
	}
	if Version() != "v1.2.3" {
		t.Error(Version())
	}
}
