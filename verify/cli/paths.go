package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

const (
	logName  = "audit.jsonl"
	keysName = "keys.json"
)

// defaultDir is the folder that is used where no path is given.
func defaultDir() (string, error) {
	if dir := os.Getenv("MCP_AUDIT_DIR"); dir != "" {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", usage("there is no home directory (%w); give a path, or set MCP_AUDIT_DIR", err)
	}
	return filepath.Join(home, ".mcp-audit"), nil
}

// logPath is the log file that a command's argument means: a file, the log in
// a folder, or the default.
func logPath(args []string) (string, error) {
	path := ""
	if len(args) > 0 {
		path = args[0]
	} else {
		dir, err := defaultDir()
		if err != nil {
			return "", err
		}
		path = dir
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() || len(args) == 0 {
		return filepath.Join(path, logName), nil
	}
	return path, nil
}

// logFiles is one log: its files, oldest first.
type logFiles struct {
	name  string // how messages call it
	files []string
}

// active is the file that is written to, the last one.
func (l *logFiles) active() string { return l.files[len(l.files)-1] }

// logsOf resolves the paths of a command line: nothing (the default folder's
// log), a folder (all logs in it), or the files of one log, in order.
func logsOf(paths []string) ([]logFiles, error) {
	if len(paths) == 0 {
		dir, err := defaultDir()
		if err != nil {
			return nil, err
		}
		logs, err := logsIn(dir)
		if err != nil {
			return nil, err
		}
		for _, l := range logs {
			if l.name == filepath.Join(dir, logName) {
				return []logFiles{l}, nil
			}
		}
		return nil, usage("there is no log %s yet; give a path, or set MCP_AUDIT_DIR", filepath.Join(dir, logName))
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case err != nil:
			return nil, usage("%w; give the path of a log or of its folder", err)
		case info.IsDir() && len(paths) > 1:
			return nil, usage("%s is a folder; give one folder, or the files of one log", path)
		case info.IsDir():
			return logsIn(path)
		}
	}
	return []logFiles{{name: paths[0], files: paths}}, nil
}

// closedName matches a closed segment: its log, number and time.
var closedName = regexp.MustCompile(`^(.+\.jsonl)\.(\d{6,18})\.(\d{8}T\d{6}Z)$`)

// logsIn lists the logs of a folder.
func logsIn(dir string) ([]logFiles, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, usage("there is no folder %s; give the path of a log, or set MCP_AUDIT_DIR", dir)
		}
		return nil, usage("%w", err)
	}
	type closed struct {
		number int
		file   string
	}
	segments := map[string][]closed{}
	var active []string
	for _, e := range entries {
		name := e.Name()
		if m := closedName.FindStringSubmatch(name); m != nil {
			n, err := strconv.Atoi(m[2])
			if err == nil {
				segments[m[1]] = append(segments[m[1]], closed{n, name})
			}
		} else if strings.HasSuffix(name, ".jsonl") && !strings.HasSuffix(name, ".v2.jsonl") && e.Type().IsRegular() {
			active = append(active, name)
			segments[name] = segments[name][:len(segments[name]):len(segments[name])]
		}
	}
	var logs []logFiles
	for name, list := range segments {
		slices.SortFunc(list, func(a, b closed) int {
			return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.file, b.file))
		})
		l := logFiles{name: filepath.Join(dir, name)}
		for _, c := range list {
			l.files = append(l.files, filepath.Join(dir, c.file))
		}
		if slices.Contains(active, name) {
			l.files = append(l.files, filepath.Join(dir, name))
		}
		logs = append(logs, l)
	}
	logs = withForeignArchives(dir, entries, logs)
	if len(logs) == 0 {
		return nil, usage("there is no log (*.jsonl) in the folder %s", dir)
	}
	slices.SortFunc(logs, func(a, b logFiles) int { return cmp.Compare(a.name, b.name) })
	return logs, nil
}

// secretFromEnvironment is the operator's MAC secret, or nil. It is never
// taken from the command line, which other users of the machine can see.
func secretFromEnvironment() []byte {
	for _, name := range []string{"MCP_AUDIT_SIGNING_SECRET", "AUDIT_SECRET"} {
		if v := os.Getenv(name); v != "" {
			return []byte(v)
		}
	}
	return nil
}

// keysBeside is the key file that lies beside a log.
func keysBeside(log string) string { return filepath.Join(filepath.Dir(log), keysName) }

// settling reads a log that may be written to at this moment: where it ends
// within a line, it waits a little for the rest of the write.
type settling struct {
	*os.File
	last  byte
	tries int
}

// How long a half-written line is waited for.
const (
	settleStep  = 10 * time.Millisecond
	settleTries = 15
)

func (s *settling) Read(p []byte) (int, error) {
	for {
		n, err := s.File.Read(p)
		if n > 0 {
			s.last = p[n-1]
			return n, err
		}
		if err != io.EOF || s.last == '\n' || s.last == 0 || s.tries == settleTries {
			return n, err
		}
		s.tries++
		time.Sleep(settleStep)
	}
}

// source opens a log file for verification.
func source(path string) auditlog.Source {
	return auditlog.Source{Name: path, Open: func() (io.ReadCloser, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		info, err := f.Stat()
		if err == nil && info.IsDir() {
			err = fmt.Errorf("%s is a folder", path)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return &settling{File: f}, nil
	}}
}

// isSQLite reports whether a file is a SQLite database.
func isSQLite(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	const magic = "SQLite format 3\x00"
	head := make([]byte, len(magic))
	n, err := io.ReadFull(f, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return false, err
	}
	return string(head[:n]) == magic, nil
}
