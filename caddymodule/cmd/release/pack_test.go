package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var commit = time.Date(2026, 12, 1, 10, 0, 0, 0, time.FixedZone("", 3600))

func TestTheSameEntriesGiveTheSameArchive(t *testing.T) {
	for _, extension := range []string{".tar.gz", ".zip"} {
		t.Run(extension, func(t *testing.T) {
			dir := t.TempDir()
			program := filepath.Join(dir, "program")
			var archives [][]byte
			for i, order := range [][]int{{0, 1}, {1, 0}} {
				// Written anew: its own time must not show.
				if err := os.WriteFile(program, []byte("code"), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.Chtimes(program, time.Time{}, time.Unix(int64(1000*i), 0)); err != nil {
					t.Fatal(err)
				}
				entries := []entry{{name: "mcp-audit", file: program, mode: 0o755}, {name: "LICENSE", text: "free", mode: 0o644}}
				path := filepath.Join(dir, "a"+extension)
				if err := pack(path, "a", []entry{entries[order[0]], entries[order[1]]}, commit); err != nil {
					t.Fatal(err)
				}
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				archives = append(archives, data)
			}
			if !bytes.Equal(archives[0], archives[1]) {
				t.Error("the archives differ")
			}
		})
	}
}

func TestArchivesHoldWhatWasPacked(t *testing.T) {
	dir := t.TempDir()
	entries := []entry{{name: "mcp-audit", text: "code", mode: 0o755}, {name: "LICENSE", text: "free", mode: 0o644}}
	want := "a/LICENSE -rw-r--r-- free, a/mcp-audit -rwxr-xr-x code"
	readers := map[string]func(*testing.T, string) []string{".tar.gz": readTar, ".zip": readZip}
	for extension, read := range readers {
		t.Run(extension, func(t *testing.T) {
			path := filepath.Join(dir, "a"+extension)
			if err := pack(path, "a", entries, commit); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(read(t, path), ", "); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

func readTar(t *testing.T, path string) (found []string) {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	plain, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for archive := tar.NewReader(plain); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(commit) || h.Uid != 0 || h.Uname != "" {
			t.Errorf("%s is of %v and of user %d %q", h.Name, h.ModTime, h.Uid, h.Uname)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, h.Name+" "+h.FileInfo().Mode().String()+" "+string(content))
	}
}

func readZip(t *testing.T, path string) (found []string) {
	archive, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	for _, f := range archive.File {
		if !f.Modified.Equal(commit) {
			t.Errorf("%s is of %v", f.Name, f.Modified)
		}
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, f.Name+" "+f.Mode().String()+" "+string(content))
	}
	return found
}

func TestAFailureLeavesNoArchive(t *testing.T) {
	dir := t.TempDir()
	err := pack(filepath.Join(dir, "a.tar.gz"), "a", []entry{{name: "x", file: filepath.Join(dir, "missing")}}, commit)
	if err == nil {
		t.Error("there is no error")
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	at := "-time=2026-12-01T00:00:00Z"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{at}, "-version"},
		{[]string{"-version=a/b", at}, "-version"},
		{[]string{"-version=v1", "-time=now"}, "-time"},
		{[]string{"-version=v1", at, "-targets=plan9/386"}, "plan9/386"},
		{[]string{"-version=v1", at, "-targets="}, "-targets"},
		{[]string{"-version=v1", at, "-targets=linux/amd64 windows/amd64,darwin/arm64"}, ""},
	} {
		_, err := parse(c.args)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: %v, want %q", c.args, err, c.want)
		}
	}
}

func TestABillOfMaterialsHasTheReleasesVersionAndTime(t *testing.T) {
	got, err := settle([]byte(`{"version":1,"metadata":{"timestamp":"2030-01-01T00:00:00Z","component":{"name":"x"}}}`), "v1.2.3", commit)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"timestamp": "2026-12-01T09:00:00Z"`, `"version": "v1.2.3"`, `"version": 1`} {
		if !strings.Contains(string(got), part) {
			t.Errorf("%s is not in %s", part, got)
		}
	}
	for _, odd := range []string{"", "{}", `{"metadata":{}}`} {
		if _, err := settle([]byte(odd), "v1", commit); err == nil {
			t.Errorf("%q is taken", odd)
		}
	}
}
