package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// anchorFiles lists the files that --anchor names: a folder, as an anchor
// makes it, stands for its checkpoints.
func anchorFiles(paths []string) (files []string, err error) {
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, usage("reading the anchor: %w", err)
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, usage("reading the anchor: %w", err)
		}
		found := 0
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".checkpoint") {
				files = append(files, filepath.Join(path, e.Name()))
				found++
			}
		}
		if found == 0 {
			return nil, usage("the folder %s has no checkpoint (*.checkpoint)", path)
		}
	}
	return files, nil
}

// receipts are what anchors gave back, from beside a log.
func receipts(cmd *cobra.Command, log string) (notes []auditlog.Anchor) {
	for _, path := range receiptsBeside(log) {
		text, err := readNote(path)
		if err != nil {
			cmd.PrintErrf("mcp-audit: the receipt of an anchor is not checked: %v\n", err)
			continue
		}
		notes = append(notes, auditlog.Anchor{Name: path, Note: text})
	}
	return notes
}

// witnessedText says which witnesses cosigned an anchor.
func witnessedText(list []auditlog.Cosignature) string {
	var parts []string
	for _, c := range list {
		parts = append(parts, fmt.Sprintf("%s at %s", printable(c.Witness), timeOf(c.Time)))
	}
	if len(parts) == 0 {
		return ""
	}
	return ", witnessed by " + strings.Join(parts, " and ")
}
