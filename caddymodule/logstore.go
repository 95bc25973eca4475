package caddymodule

import (
	"errors"
	"fmt"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/sqlite"
)

// The values of LogConfig.Output.
const (
	storeJSONL  = "jsonl"
	storeSQLite = "sqlite"
)

// unmarshalSQLite parses the options of `output sqlite`.
func (c *LogConfig) unmarshalSQLite(d *caddyfile.Dispenser) error {
	if err := sqlite.Available(); err != nil {
		return d.WrapErr(err)
	}
	_, err := block(d, map[string]func() error{
		"synchronous": func() error {
			return choice(d, &c.Synchronous, sqlite.Full.String(), sqlite.Normal.String())
		},
	})
	return err
}

// resolveSQLite checks what concerns only a database.
func (s *logSettings) resolveSQLite() error {
	if s.Output != storeSQLite {
		if s.Synchronous != "" {
			return s.fault("synchronous", errors.New("it is an option of the store sqlite; remove it"))
		}
		return nil
	}
	if err := sqlite.Available(); err != nil {
		return s.fault("output", err)
	}
	if s.RotateSize != 0 || s.RotateEvery != "" || s.KeepFiles != 0 || s.KeepFor != 0 || s.Compress != "" {
		return s.fault("output", errors.New("a database is not rotated; remove the options of rotation, or use output jsonl"))
	}
	if s.KeyMode == auditlog.Evolving.String() {
		return s.fault("key_mode", errors.New("keys evolve only in a log of files; use output jsonl"))
	}
	switch s.Synchronous {
	case "":
		s.Synchronous = sqlite.Full.String()
	case sqlite.Full.String(), sqlite.Normal.String():
	default:
		return s.fault("synchronous", fmt.Errorf("unknown value %q; use %s or %s", s.Synchronous, sqlite.Full, sqlite.Normal))
	}
	return nil
}

// store makes the log's store. It touches no file.
func (s *logSettings) store() (auditlog.Store, error) {
	if s.Output != storeSQLite {
		return jsonl.New(s.Path, jsonl.Options{Exclusive: s.keyMode == auditlog.Evolving})
	}
	opts := sqlite.Options{}
	if s.Synchronous == sqlite.Normal.String() {
		opts.Synchronous = sqlite.Normal
	}
	return sqlite.New(s.Path, opts)
}

// sources lists the files of the log for reading.
func (s *logSettings) sources() ([]auditlog.Source, error) {
	if s.Output == storeSQLite {
		return []auditlog.Source{sqlite.Source(s.Path)}, nil
	}
	return jsonl.Sources(s.Path)
}

// backend is the store's name, as in Output.
func (s *logSettings) backend() string {
	if s.Output == storeSQLite {
		return storeSQLite
	}
	return storeJSONL
}
