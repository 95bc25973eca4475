package shim

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// launch is how a child was started.
type launch struct {
	command   []string
	path      string // resolved; "" if the command was not found
	env       []string
	pid       int
	failure   error
	directory string
	started   time.Time
	sum       chan string // of the executable; has one element
}

// launchText is the report of a launch. Its arguments are redacted where they
// are recorded.
type launchText struct {
	Report      string          `json:"report"`
	Command     string          `json:"command"`
	Executable  string          `json:"executable,omitempty"`
	SHA256      string          `json:"executable_sha256,omitempty"`
	Arguments   []string        `json:"arguments"`
	Omitted     int             `json:"arguments_omitted,omitempty"`
	Environment []string        `json:"environment"`
	Directory   string          `json:"directory,omitempty"`
	PID         int             `json:"pid,omitempty"`
	Failure     string          `json:"failure,omitempty"`
	Started     string          `json:"started"`
	Shim        string          `json:"shim"`
	Version     string          `json:"protocol_version,omitempty"`
	Client      json.RawMessage `json:"client,omitempty"`
}

// launchBytes bounds the arguments, and the names of the environment, that are
// reported. More are counted.
const launchBytes = 16 << 10

// newLaunch begins to hash the executable, beside the child's own start.
func newLaunch(command, env []string, child *Process, failure error) *launch {
	l := &launch{command: command, env: env, failure: failure, started: time.Now(), sum: make(chan string, 1)}
	l.directory, _ = os.Getwd()
	if child != nil {
		l.path, l.pid = child.Path, child.cmd.Process.Pid
	}
	go func() { l.sum <- hashFile(l.path) }()
	return l
}

// hashFile is the SHA-256 of a file in base64url, or "" if it cannot be read.
func hashFile(path string) string {
	if path == "" {
		return ""
	}
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// report is the report of the launch, with what the client said of itself. It
// waits for the hash.
func (l *launch) report(version string, clientInfo []byte) json.RawMessage {
	text := launchText{
		Report: "launch", Command: l.command[0], Executable: l.path, SHA256: <-l.sum, Arguments: []string{}, Environment: names(l.env),
		Directory: l.directory, PID: l.pid, Started: l.started.UTC().Format(time.RFC3339Nano), Shim: filepath.Base(os.Args[0]), Version: version,
	}
	size := 0
	for _, a := range l.command[1:] {
		if size += len(a); size > launchBytes {
			text.Omitted++
			continue
		}
		text.Arguments = append(text.Arguments, strings.ToValidUTF8(a, "�"))
	}
	if json.Valid(clientInfo) && len(clientInfo) <= launchBytes {
		text.Client = clientInfo
	}
	if l.failure != nil {
		text.Failure = l.failure.Error()
	}
	out, err := json.Marshal(text)
	if err != nil {
		return nil // nothing in it can fail to marshal
	}
	return out
}

// names are those of an environment, without values.
func names(env []string) []string {
	list := make([]string, 0, len(env))
	size := 0
	for _, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		if size += len(name); name != "" && size <= launchBytes {
			list = append(list, strings.ToValidUTF8(name, "�"))
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
