package auditlog_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

func sliceLeaves(leaves []auditlog.Hash) auditlog.Leaves {
	return func(_ context.Context, from, to uint64, each func(auditlog.Hash) error) error {
		for _, l := range leaves[from:to] {
			if err := each(l); err != nil {
				return err
			}
		}
		return nil
	}
}

// files lists a folder's files with their sizes.
func tileFiles(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		name, _ := filepath.Rel(dir, path)
		out[filepath.ToSlash(name)] = info.Size()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTilesLieAsTlogTilesSays(t *testing.T) {
	leaves, read := leavesOf(70_000)
	dir := t.TempDir()
	tiles := auditlog.NewTiles(nil, dir)
	for _, n := range []int{1, 255, 256, 257, 1000, 65_536, 70_000} {
		_, note := headOf(t, "audit.example/i0", leaves[:n], 3)
		if err := tiles.Grow(t.Context(), note, read); err != nil {
			t.Fatal(n, err)
		}
		if got, _ := os.ReadFile(filepath.Join(dir, "checkpoint")); !bytes.Equal(got, note) {
			t.Errorf("%d: checkpoint %s", n, got)
		}
	}
	got := tileFiles(t, dir)
	delete(got, "checkpoint")
	full, partial := 0, map[string]int64{}
	for name, size := range got {
		if size == 256*32 {
			full++
		} else {
			partial[name] = size
		}
	}
	// 70000 = 273 × 256 + 112 = 1 × 65536 + 17 × 256 + 112
	want := map[string]int64{"tile/0/273.p/112": 112 * 32, "tile/1/001.p/17": 17 * 32, "tile/2/000.p/1": 32}
	if full != 273+1 || len(partial) != len(want) {
		t.Errorf("%d full, partial %v", full, partial)
	}
	for name, size := range want {
		if partial[name] != size {
			t.Errorf("%s: %d, want %d", name, partial[name], size)
		}
	}
	if first, _ := os.ReadFile(filepath.Join(dir, "tile/0/001")); !bytes.Equal(first[:32], leaves[256][:]) {
		t.Error("tile/0/001 does not begin with leaf 256")
	}
}

func TestDamagedTilesNeverGiveAWrongProof(t *testing.T) {
	leaves, read := leavesOf(1500)
	policy := policyOf(t, auditlogVKey(t, "audit.example/i0", 3))
	head, note := headOf(t, "audit.example/i0", leaves, 3)
	dir := t.TempDir()
	if err := auditlog.NewTiles(nil, dir).Grow(t.Context(), note, read); err != nil {
		t.Fatal(err)
	}
	for name := range tileFiles(t, dir) {
		if name == "checkpoint" {
			continue
		}
		path := filepath.Join(dir, name)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range [][]byte{append([]byte{good[0] ^ 1}, good[1:]...), good[:len(good)-32], {}, nil} {
			if bad == nil {
				err = os.Remove(path)
			} else {
				err = os.WriteFile(path, bad, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			failed := 0
			tiles := auditlog.NewTiles(nil, dir)
			for i := 0; i < len(leaves); i += 97 {
				path, err := tiles.Tree(head).Inclusion(uint64(i))
				if err != nil {
					failed++
					continue
				}
				p := auditlog.InclusionProof{Index: uint64(i), Path: path, Checkpoint: note}
				if _, _, err := p.Check(leaves[i], policy); err != nil {
					t.Fatalf("%s: a proof that does not hold: %v", name, err)
				}
			}
			if failed == 0 {
				t.Errorf("%s: the damage was not noticed", name)
			}
			// Growing further makes them anew.
			grown, more := leavesOf(1600)
			_, later := headOf(t, "audit.example/i0", grown, 3)
			again := filepath.Join(t.TempDir(), "copy")
			if err := os.CopyFS(again, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			renewed := auditlog.NewTiles(nil, again)
			if err := renewed.Grow(t.Context(), later, more); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if err := renewed.Remake(t.Context(), later, more); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			to, err := auditlog.ReadTreeHead(later)
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i < len(grown); i += 97 {
				if _, err := renewed.Tree(to).Inclusion(uint64(i)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLeavesThatAreNotTheCheckpointsAreRefused(t *testing.T) {
	leaves, _ := leavesOf(600)
	_, note := headOf(t, "audit.example/i0", leaves, 3)
	changed := bytes.Clone(leaves[300][:])
	changed[0] ^= 1
	leaves[300] = auditlog.Hash(changed)
	dir := t.TempDir()
	tiles := auditlog.NewTiles(nil, dir)
	if err := tiles.Grow(t.Context(), note, sliceLeaves(leaves)); !errors.Is(err, auditlog.ErrTreeDiffers) {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "checkpoint")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the tiles claim to go up to a checkpoint that they do not have")
	}
}
