package auditlog_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
)

// provesOld requires that an old checkpoint and an old record of a log can
// still be proven, though their files are gone.
func provesOld(t *testing.T, path string, old []byte, line []byte, vkey string) {
	t.Helper()
	tiles := func(origin string) string { return auditlog.TilesDir(path, origin) }
	list, err := jsonl.Sources(path)
	if err != nil {
		t.Fatal(err)
	}
	o := auditlog.ProveOptions{Work: t.TempDir(), VKey: vkey, Tiles: tiles}
	p, _, _, err := auditlog.ProveConsistency(t.Context(), list, old, o)
	if err != nil {
		t.Fatalf("consistency with an old checkpoint: %v", err)
	}
	if from, to, err := p.Check(old, policyOf(t, vkey)); err != nil || from.Size >= to.Size {
		t.Errorf("consistency: %+v %+v %v", from, to, err)
	}
	// A record that was kept elsewhere: its place in the tree is in the tiles.
	head, err := auditlog.ReadTreeHead(p.Checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	l, fault := auditlog.SplitLine(line)
	if fault != auditlog.LineOK {
		t.Fatal(fault)
	}
	proof, err := auditlog.NewTiles(nil, tiles(head.Origin)).Tree(tileHead(t, tiles(head.Origin))).Inclusion(l.Seal.Seq)
	if err != nil || len(proof) == 0 {
		t.Errorf("inclusion of record %d: %v", l.Seal.Seq, err)
	}
}

func tileHead(t *testing.T, dir string) auditlog.TreeHead {
	t.Helper()
	head, err := auditlog.NewTiles(nil, dir).Head()
	if err != nil {
		t.Fatal(err)
	}
	return head
}

func TestRetentionKeepsTheLeavesOfWhatItDeletes(t *testing.T) {
	for name, rotation := range map[string]auditlog.Rotation{
		"by number":             {Size: 4 << 10, KeepFiles: 1},
		"by number, compressed": {Size: 4 << 10, KeepFiles: 1, Compress: true},
		"by age":                {Size: 4 << 10, KeepFor: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			path := quickPath(t)
			c := newClock(time.Now().Add(-3 * time.Hour))
			l := setup{change: func(cfg *auditlog.Config) { cfg.Rotation, cfg.Now = rotation, c.now }}.open(t, path)
			vkey := l.Status().VKey
			call(t, l)
			old, err := l.Checkpoint(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			line := []byte(strings.SplitN(string(read(t, path)), "\n", 3)[1])
			for range 20 {
				call(t, l)
			}
			c.advance(2 * time.Hour)
			eventually(t, "the first segment is deleted", func() bool {
				call(t, l)
				names, err := filepath.Glob(path + ".000000.*")
				return err == nil && len(names) == 0
			})
			closeLog(t, l)
			r := verifyAll(t, path, "partial_history")
			if r.Exit != auditlog.ExitIncomplete || r.Retired == 0 || r.Retired != r.First {
				t.Errorf("exit %d, retired %d, first %d", r.Exit, r.Retired, r.First)
			}
			provesOld(t, path, old, line, vkey)
		})
	}
}

func TestASegmentWhoseLeavesCannotBeKeptIsNotDeleted(t *testing.T) {
	path := quickPath(t)
	// A file stands where the tiles' folder should be.
	blocked := strings.TrimSuffix(path, ".jsonl") + ".tiles"
	write(t, blocked, nil)
	core, logged := observer.New(zapcore.WarnLevel)
	l := setup{change: func(cfg *auditlog.Config) {
		cfg.Rotation = auditlog.Rotation{Size: 4 << 10, KeepFiles: 1}
		cfg.Logger = zap.New(core)
	}}.open(t, path)
	said := func() bool {
		for _, e := range logged.All() {
			if err, ok := e.ContextMap()["error"].(string); ok && strings.Contains(err, "none of these is deleted") && strings.Contains(err, blocked) {
				return true
			}
		}
		return false
	}
	eventually(t, "it is said that segments are kept", func() bool {
		call(t, l)
		return said()
	})
	for range 10 {
		call(t, l)
	}
	if n := len(archives(t, path)); n < 3 {
		t.Errorf("%d closed segments are left", n)
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the segments are deleted once their leaves are kept", func() bool {
		call(t, l)
		return len(archives(t, path)) <= 2
	})
	closeLog(t, l)
	verifyAll(t, path, "partial_history")
}

func TestRetentionGoesOnWhereEarlierLeavesAreGone(t *testing.T) {
	path := quickPath(t)
	s := rotating(auditlog.Rotation{Size: 4 << 10, KeepFiles: 2})
	l := s.open(t, path)
	eventually(t, "segments are deleted", func() bool {
		call(t, l)
		names, err := filepath.Glob(path + ".000001.*")
		return err == nil && len(names) == 0 && l.Status().Segment > 3
	})
	closeLog(t, l)
	if err := os.RemoveAll(strings.TrimSuffix(path, ".jsonl") + ".tiles"); err != nil {
		t.Fatal(err)
	}
	l = s.open(t, path)
	from := l.Status().Segment
	eventually(t, "segments are deleted without tiles", func() bool {
		call(t, l)
		return l.Status().Segment > from+3 && len(archives(t, path)) <= 3
	})
	closeLog(t, l)
	verifyAll(t, path, "partial_history")
}
