package caddymodule

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/dustin/go-humanize"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// minRotateSize is the smallest rotate_size: below it, closing a file would
// write more than the calls in it.
const minRotateSize = 4 << 10

// unmarshalRotation parses the block of `output`. It returns where each option
// stands.
func (c *LogConfig) unmarshalRotation(d *caddyfile.Dispenser) (map[string]string, error) {
	return block(d, map[string]func() error{
		"rotate_size": func() error {
			var text string
			if err := one(d, &text); err != nil {
				return err
			}
			n, err := humanize.ParseBytes(text)
			if err != nil || n < minRotateSize || n > math.MaxInt64 {
				return d.Errf("rotate_size: %q is not a size of 4KiB or more, such as 100MiB", text)
			}
			c.RotateSize = int64(n)
			return nil
		},
		"rotate_every": func() error { return choice(d, &c.RotateEvery, "hour", "day") },
		"keep_files": func() error {
			var text string
			if err := one(d, &text); err != nil {
				return err
			}
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 {
				return d.Errf("keep_files: %q is not a number of 1 or more", text)
			}
			c.KeepFiles = n
			return nil
		},
		"keep_for": func() error {
			var text string
			if err := one(d, &text); err != nil {
				return err
			}
			t, err := caddy.ParseDuration(text)
			if err != nil || t <= 0 {
				return d.Errf("keep_for: %q is not a time such as 30d", text)
			}
			c.KeepFor = caddy.Duration(t)
			return nil
		},
		"compress": func() error {
			c.Compress = "gzip"
			if !d.NextArg() {
				return nil
			}
			if d.Val() != c.Compress {
				return d.Errf("compress: unknown format %q; use gzip", d.Val())
			}
			return none(d)
		},
	})
}

// resolveRotation checks the options of rotation and retention.
func (s *logSettings) resolveRotation() error {
	r := auditlog.Rotation{
		Size: s.RotateSize, KeepFiles: s.KeepFiles, KeepFor: time.Duration(s.KeepFor), Compress: s.Compress == "gzip",
	}
	if s.RotateSize != 0 && s.RotateSize < minRotateSize {
		return s.fault("rotate_size", errors.New("use 4096 bytes or more"))
	}
	switch s.RotateEvery {
	case "":
	case "hour":
		r.Every = auditlog.Hourly
	case "day":
		r.Every = auditlog.Daily
	default:
		return s.fault("rotate_every", fmt.Errorf("unknown period %q; use hour or day", s.RotateEvery))
	}
	switch {
	case s.KeepFiles < 0:
		return s.fault("keep_files", errors.New("use 1 or more"))
	case s.KeepFor < 0:
		return s.fault("keep_for", errors.New("use a positive time"))
	case s.Compress != "" && s.Compress != "gzip":
		return s.fault("compress", fmt.Errorf("unknown format %q; use gzip", s.Compress))
	}
	for option, set := range map[string]bool{"keep_files": s.KeepFiles > 0, "keep_for": s.KeepFor > 0, "compress": s.Compress != ""} {
		if set && r.Size == 0 && r.Every == auditlog.Never {
			return s.fault(option, errors.New("it concerns closed files, but none is ever closed; set rotate_size or rotate_every, too"))
		}
	}
	s.rotation = r
	return nil
}
