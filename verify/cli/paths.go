package cli

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

const (
	logName      = "audit.jsonl"
	databaseName = "audit.db"
	keysName     = "keys.json"
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
		return logInFolder(path), nil
	}
	return path, nil
}

// logInFolder is the log that a folder stands for: audit.db if it is there and
// audit.jsonl is not, else audit.jsonl.
func logInFolder(dir string) string {
	_, lines := os.Lstat(filepath.Join(dir, logName))
	_, database := os.Lstat(filepath.Join(dir, databaseName))
	if lines != nil && database == nil {
		return filepath.Join(dir, databaseName)
	}
	return filepath.Join(dir, logName)
}

// logFiles is one log: its files, oldest first.
type logFiles struct {
	name  string // how messages call it
	files []string
	whole bool // name is the log's path, and files all that were found of it
	// current: what is judged begins with the last chain break. The files that
	// were given up before it are judged with the folder.
	current bool
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
			if l.name == logInFolder(dir) {
				l.current = true
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
	if len(paths) == 1 && !isSegment(paths[0]) {
		// The log's file alone would be the end of a history.
		if l, err := wholeLog(paths[0]); err == nil && len(l.files) > 1 {
			l.current = true
			return []logFiles{l}, nil
		}
	}
	return []logFiles{{name: paths[0], files: paths}}, nil
}

// logsIn lists the logs of a folder.
func logsIn(dir string) ([]logFiles, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, usage("there is no folder %s; give the path of a log, or set MCP_AUDIT_DIR", dir)
		}
		return nil, usage("%w", err)
	}
	names := map[string]bool{}
	for _, e := range entries {
		name := e.Name()
		if log, _, _, _, ok := auditlog.SplitArchiveName(name); ok && isLogName(log) {
			names[log] = true
		} else if isLogName(name) && e.Type().IsRegular() {
			names[name] = true
		}
	}
	var logs []logFiles
	for _, name := range slices.Sorted(maps.Keys(names)) {
		l, err := wholeLog(filepath.Join(dir, name))
		if err != nil {
			return nil, usage("%w", err)
		}
		logs = append(logs, l)
	}
	logs = withForeignArchives(dir, entries, logs)
	if len(logs) == 0 {
		return nil, usage("there is no log (*.jsonl, *.db) in the folder %s", dir)
	}
	return logs, nil
}

// wholeLog is a log with its closed segments.
func wholeLog(path string) (logFiles, error) {
	l := logFiles{name: path, whole: true}
	var err error
	if l.files, err = segmentsOf(path); err != nil {
		return l, err
	}
	if _, err := os.Stat(path); err == nil {
		l.files = append(l.files, path)
	}
	return l, nil
}

// isLogName tells the logs of a folder from what lies beside them.
func isLogName(name string) bool {
	return strings.HasSuffix(name, ".jsonl") && !strings.HasSuffix(name, ".v2.jsonl") || filepath.Ext(name) == ".db"
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
	r     io.ReadCloser
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
		n, err := s.r.Read(p)
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

// Close implements io.Closer.
func (s *settling) Close() error { return s.r.Close() }

// source opens a log file for verification.
func source(path string, limits segmentLimits) auditlog.Source {
	return auditlog.Source{Name: path, Open: func() (io.ReadCloser, error) {
		r, err := limits.open(path)
		if err != nil {
			return nil, err
		}
		return settled(r), nil
	}}
}
