package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const caddyfile = `{
	admin off
	grace_period 2s
	mcp_audit {
		log default {
			output jsonl %[1]s
		}
	}
}
http://%[2]s {
	route /mcp* {
		mcp_audit {
			server_id notes
			client_id {http.request.remote.host}
			policy {
				rule KEEP-FILES deny {
					method tools/call
					tool delete_file
				}
			}
		}
		reverse_proxy %[3]s
	}
}
`

// play runs the acts in order.
func (d *demo) play(ctx context.Context) error {
	acts := []struct {
		title string
		run   func(context.Context) error
	}{
		{"A client calls an MCP server over HTTP, through Caddy with mcp_audit", d.overHTTP},
		{"The same over stdio: the shim stands where the server's command stood", d.overStdio},
		{"What happened, from the log that both share", d.showRecords},
		{"Anyone can check the log", d.verify},
		{"One byte of a copy is changed", d.flip},
		{"The last three records of a copy are cut off", d.cut},
	}
	for i, act := range acts {
		heading(i+1, act.title)
		if err := act.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", act.title, err)
		}
	}
	fmt.Println()
	return nil
}

func (d *demo) overHTTP(ctx context.Context) error {
	server, err := d.listen("notes-server", func(address string) []string { return []string{"-http", address} })
	if err != nil {
		return err
	}
	route, err := d.listen("caddy", func(address string) []string {
		file := filepath.Join(d.folder, "Caddyfile")
		d.problem = os.WriteFile(file, fmt.Appendf(nil, caddyfile, d.log, address, server), 0o600)
		return []string{"run", "--config", file}
	})
	if err != nil {
		return err
	}
	say("client → http://%s/mcp → mcp_audit → http://%s", route, server)
	session, err := connectHTTP(ctx, "http://"+route+"/mcp")
	if err != nil {
		return err
	}
	defer session.Close()
	return calls(ctx, session,
		step{"add_note", map[string]any{"name": "shopping", "text": "milk, bread", "api_token": "not for the log"}},
		step{"read_file", map[string]any{"path": "shopping"}},
		step{"read_file", map[string]any{"path": "missing"}},
		step{"delete_file", map[string]any{"path": "shopping"}},
	)
}

func (d *demo) overStdio(ctx context.Context) error {
	say(`"command": "mcp-audit-shim", "args": ["--", "notes-server"]`)
	session, err := connectStdio(ctx, d.command(ctx, "mcp-audit-shim", "--", d.program("notes-server")))
	if err != nil {
		return err
	}
	defer session.Close()
	return calls(ctx, session,
		step{"echo", map[string]any{"message": "hello through the shim"}},
		step{"slow", map[string]any{"seconds": 0.2}},
	)
}

func (d *demo) showRecords(ctx context.Context) error {
	// Caddy's orderly end seals the log with a checkpoint.
	d.stopAll()
	if err := d.show(ctx, 0, "tail", d.log); err != nil {
		return err
	}
	operation, err := d.find(`"tool_name":"add_note"`)
	if err != nil {
		return err
	}
	say("one call in full; what looks like a secret is not kept:")
	return d.show(ctx, 0, "show", operation, d.log)
}

func (d *demo) verify(ctx context.Context) error {
	if err := d.show(ctx, 0, "verify", d.log); err != nil {
		return err
	}
	say("a third party needs the public key alone:")
	return d.show(ctx, 0, "verify", d.log, "--pub", d.publicKey(ctx))
}

func (d *demo) flip(ctx context.Context) error {
	data, err := os.ReadFile(d.log)
	if err != nil {
		return err
	}
	at := bytes.Index(data, []byte("milk, bread"))
	if at < 0 {
		return fmt.Errorf("the log %s does not hold the note", d.log)
	}
	data[at] = 's'
	say(`"milk" becomes %q`, data[at:at+4])
	return d.tampered(ctx, 1, data)
}

func (d *demo) cut(ctx context.Context) error {
	data, err := os.ReadFile(d.log)
	if err != nil {
		return err
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	data = bytes.Join(lines[:len(lines)-4], nil)
	say("the log alone cannot tell, and verify says so:")
	if err := d.tampered(ctx, 0, data); err != nil {
		return err
	}
	say("whoever holds a checkpoint sees it:")
	return d.tampered(ctx, 4, data, "--anchor", d.log+".checkpoint")
}

// tampered verifies a copy of the log with other content and expects the exit
// code.
func (d *demo) tampered(ctx context.Context, code int, data []byte, options ...string) error {
	copied := filepath.Join(d.folder, "copy.jsonl")
	if err := os.WriteFile(copied, data, 0o600); err != nil {
		return err
	}
	return d.show(ctx, code, append([]string{"verify", copied, "--keys", filepath.Join(filepath.Dir(d.log), "keys.json")}, options...)...)
}

// find returns the operation id of the first record that contains the text.
func (d *demo) find(text string) (string, error) {
	data, err := os.ReadFile(d.log)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		const member = `{"audit_operation_id":"`
		if strings.Contains(line, text) && strings.HasPrefix(line, member) {
			return line[len(member) : len(member)+36], nil
		}
	}
	return "", fmt.Errorf("the log %s has no record with %s", d.log, text)
}
