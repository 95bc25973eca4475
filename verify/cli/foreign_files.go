package cli

import (
	"cmp"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The archives of other systems: NAME.jsonl.TIME with .1, .2, … behind it, and
// NAME-TIME.jsonl.
var (
	archiveName = regexp.MustCompile(`^(.+)\.(\d{8}T\d{6}Z)(?:\.(\d{1,9}))?$`)
	rotatedName = regexp.MustCompile(`^(.+)-(\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}-\d{3}Z)\.jsonl$`)
)

// withForeignArchives puts the archives of other systems before the logs that
// they belong to. Without that log they are one of their own.
func withForeignArchives(dir string, entries []fs.DirEntry, logs []logFiles) []logFiles {
	type archive struct {
		time string
		n    int
		file string
	}
	found := map[string][]archive{} // by the path of their log
	for _, e := range entries {
		if !e.Type().IsRegular() || isSegment(e.Name()) {
			continue
		}
		if m := archiveName.FindStringSubmatch(e.Name()); m != nil && strings.HasSuffix(m[1], ".jsonl") {
			n, _ := strconv.Atoi(m[3])
			log := filepath.Join(dir, m[1])
			found[log] = append(found[log], archive{m[2], n, filepath.Join(dir, e.Name())})
		} else if m := rotatedName.FindStringSubmatch(e.Name()); m != nil {
			log := filepath.Join(dir, m[1]+".jsonl")
			found[log] = append(found[log], archive{m[2], 0, filepath.Join(dir, e.Name())})
		}
	}
	if len(found) == 0 {
		return logs
	}
	taken := map[string]bool{}
	for log, list := range found {
		slices.SortFunc(list, func(a, b archive) int {
			return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.n, b.n), cmp.Compare(a.file, b.file))
		})
		var files []string
		for _, a := range list {
			files = append(files, a.file)
			taken[a.file] = true
		}
		if i := slices.IndexFunc(logs, func(l logFiles) bool { return l.name == log }); i >= 0 {
			logs[i].files = append(files, logs[i].files...)
		} else {
			logs = append(logs, logFiles{name: log, files: files})
		}
	}
	return slices.DeleteFunc(logs, func(l logFiles) bool { return taken[l.name] })
}
