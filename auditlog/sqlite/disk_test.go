//go:build cgo && linux

package sqlite

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// A disk without a free byte: calls fail, the log says so in its reserve, and
// goes on when there is space.
func TestAFullDiskIsOutlived(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("mcp-audit-test", disk, "tmpfs", 0, "size=3m,mode=0700"); err != nil {
		t.Skip("only root may mount a small disk:", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	path := filepath.Join(disk, "audit.db")
	l := openLog(t, path, Options{})
	op, err := l.Begin(context.Background(), auditlog.Intent{
		Message: auditlog.Message{Direction: auditlog.ClientToServer, Transport: "http", Method: "ping"}, Request: []byte(`{}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(disk, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 16; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	acknowledged := 0
	for {
		if _, err = l.Event(context.Background(), event()); err != nil {
			break
		}
		acknowledged++
	}
	if !errors.Is(err, auditlog.ErrUnavailable) || !strings.Contains(err.Error(), "no space left") && !strings.Contains(err.Error(), "full") {
		t.Errorf("after %d events: %v", acknowledged, err)
	}
	// What is under way can still be closed, at once or as soon as the reserve
	// is free.
	err = op.End(context.Background(), auditlog.Outcome{Result: auditlog.Success, Duration: time.Millisecond})
	if err != nil && !errors.Is(err, auditlog.ErrUnavailable) {
		t.Errorf("the outcome of a call under way: %v", err)
	}
	for deadline := time.Now().Add(10 * time.Second); !bytes.Contains(lines(t, path), []byte(`"kind":"outcome"`)); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the outcome of a call under way was not written on the full disk")
		}
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err = l.Event(context.Background(), event()); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the log did not go on:", err)
		}
	}
	closeLog(t, l)
	if r := verify(t, path); !onlyWarnings(r) || r.Kinds["event"] != acknowledged+1 || r.Kinds["disk_full"] == 0 || r.Kinds["outcome"] != 1 {
		t.Errorf("%d acknowledged, %v, %+v", acknowledged+1, r.Kinds, r.Findings)
	}
}
