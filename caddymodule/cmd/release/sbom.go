package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// materials writes the bill of materials of the module in CycloneDX's JSON,
// and returns its name.
func (o *options) materials(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "run", o.sbom, "mod", "-json", "-type", "application", "-noserial", "-output", "-", ".") //nolint:gosec // the arguments are the caller's own
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go run %s: %w", o.sbom, err)
	}
	text, err := settle(out, o.version, o.time)
	if err != nil {
		return "", fmt.Errorf("what %s prints: %w", o.sbom, err)
	}
	name := "mcp-audit_" + o.version + "_sbom.cdx.json"
	return name, os.WriteFile(filepath.Join(o.output, name), text, 0o644) //nolint:gosec // it is to be published
}

// settle gives a bill of materials the version, which the tool guesses from
// tags, and the commit's time in place of that of the run.
func settle(bill []byte, version string, at time.Time) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(bill))
	decoder.UseNumber()
	var all map[string]any
	if err := decoder.Decode(&all); err != nil {
		return nil, err
	}
	metadata, _ := all["metadata"].(map[string]any)
	component, _ := metadata["component"].(map[string]any)
	if component == nil {
		return nil, errors.New("there is no metadata.component")
	}
	component["version"] = version
	metadata["timestamp"] = at.UTC().Format(time.RFC3339)
	text, err := json.MarshalIndent(all, "", "  ")
	return append(text, '\n'), err
}
