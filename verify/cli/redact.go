package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/redact"
)

// maxSample bounds the text that redact is given, in bytes.
const maxSample = 64 << 20

func redactCommand() *cobra.Command {
	var profile, member string
	var flags policyFlags
	cmd := &cobra.Command{
		Use:   "redact [--profile FILE] < sample.json",
		Short: "Show what a redaction profile takes out of a sample",
		Long: `redact reads one JSON value, such as a result or the params of a call, prints it
as it would be recorded, and says on standard error what went, where, and as
what; it never prints a value that goes. It changes nothing and records nothing.

The profile is that of an mcp_audit handler in Caddy's JSON (as ` + "`caddy adapt`" + `
prints it), or a file with the redact object alone. Without --profile it is that
of a handler without the option. Tags are not shown: their key is the log's.`,
		Example: `  echo '{"password":"hunter2"}' | mcp-audit redact
  caddy adapt > caddy.json && mcp-audit redact --profile caddy.json --server files < sample.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := loadProfile(profile, &flags)
			if err != nil {
				return err
			}
			src, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxSample+1))
			if err != nil {
				return err
			}
			if len(src) > maxSample {
				return usage("the sample is larger than %d bytes", maxSample)
			}
			out, found, err := p.Find(member, bytes.TrimSpace(src))
			if err != nil {
				return &ExitError{Code: exitFailed, Err: fmt.Errorf("the sample: %w: a record would keep its length and hash alone", err)}
			}
			if out == nil {
				out = bytes.TrimSpace(src)
			}
			for _, f := range found {
				cmd.PrintErrf("bytes %d to %d: %s\n", f.Start, f.End, f.With)
			}
			cmd.PrintErrf("%d values go\n", len(found))
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", out)
			return err
		},
	}
	cmd.Flags().StringVar(&profile, "profile", "", "`file` with the profile (default: that of a handler without the option)")
	cmd.Flags().StringVar(&member, "member", "", "which `member` of a message the sample is, for JSON paths: params, result or error")
	flags.add(cmd)
	return cmd
}

// loadProfile reads a profile.
func loadProfile(path string, flags *policyFlags) (*redact.Profile, error) {
	if path == "" {
		return redact.New(redact.Config{})
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the profile: %w", err)
	}
	doc, err := readProfile(text, path, flags)
	if err != nil {
		return nil, err
	}
	if doc != nil {
		doc.Tag = false
	}
	p, err := doc.Compile(nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

func readProfile(text []byte, path string, flags *policyFlags) (*redact.Document, error) {
	if v := canon.Check(bytes.TrimSpace(text)); v != canon.None {
		return nil, fmt.Errorf("%s is no strict JSON (%s); give Caddy's JSON, as `caddy adapt` prints it, or a redact object", path, v)
	}
	handlers, err := auditHandlers(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(handlers) > 0 {
		h, err := flags.choose(handlers, path)
		if err != nil || h.redact == nil {
			return nil, err
		}
		return decodeProfile(h.redact, path)
	}
	return decodeProfile(text, path)
}

func decodeProfile(text []byte, path string) (doc *redact.Document, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&doc); err != nil {
		var name string
		if _, after, found := strings.Cut(err.Error(), "unknown field "); found {
			name = after
		}
		if name != "" {
			err = errors.New("there is no option " + name + "; there are keys, detect, patterns, paths, tag, wire, off")
		}
		return nil, fmt.Errorf("the profile in %s: %w", path, err)
	}
	return doc, nil
}
