package clients

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Server is one server in a client's configuration.
type Server struct {
	Client Client
	Name   string
	File   string
	// Command and Arguments start it; a remote one has a URL instead.
	Command   string
	Arguments []string
	URL       string

	in   file
	path []string // to its object, in JSON
}

// State says whether calls of a server are recorded.
type State string

// The states.
const (
	Audited State = "audited"
	// NotAudited: the client starts the server itself.
	NotAudited State = "not audited"
	// Remote: the server is reached over HTTP; whether a Caddy with mcp_audit is
	// before it cannot be told from here.
	Remote State = "remote"
	// Unreadable: it has neither a command nor a URL.
	Unreadable State = "unreadable"
)

// State is whether the server's calls are recorded.
func (s *Server) State() State {
	switch {
	case s.URL != "":
		return Remote
	case s.Command == "":
		return Unreadable
	case s.wrapped() >= 0:
		return Audited
	}
	return NotAudited
}

// wrapped is the index of the "--" before the server's own command, or -1.
func (s *Server) wrapped() int {
	program := strings.TrimSuffix(strings.ToLower(baseName(s.Command)), ".exe")
	shim := strings.HasPrefix(program, "mcp-audit-shim") ||
		program == "mcp-audit" && len(s.Arguments) > 0 && s.Arguments[0] == "wrap"
	i := slices.Index(s.Arguments, "--")
	if !shim || i < 0 || i+1 >= len(s.Arguments) {
		return -1
	}
	return i
}

// baseName is the last element of a path of any system: configurations are
// carried from one to the other.
func baseName(path string) string {
	return path[strings.LastIndexAny(path, `/\`)+1:]
}

// FileError is a configuration file that could not be read.
type FileError struct {
	Client string
	Path   string
	Err    error
}

// Error names the file.
func (e *FileError) Error() string { return fmt.Sprintf("%s: %s: %v", e.Client, e.Path, e.Err) }

// Unwrap returns the cause.
func (e *FileError) Unwrap() error { return e.Err }

// List finds the servers of all known clients. Files that are not there have
// none; errors are of those that could not be read, and the list is of the rest.
func List(p Place) (all []Server, errs []error) {
	for _, c := range Known(p) {
		seen := make(map[string]bool) // the project may be the home folder
		for _, f := range c.files {
			place := f.path + "\n" + strings.Join(f.keys, "\n")
			if seen[place] {
				continue
			}
			seen[place] = true
			text, err := os.ReadFile(f.path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			var found []Server
			if err == nil {
				found, err = f.servers(text)
			}
			if err != nil {
				e := &FileError{c.Name, f.path, err}
				if !slices.ContainsFunc(errs, func(have error) bool { return have.Error() == e.Error() }) {
					errs = append(errs, e)
				}
				continue
			}
			for _, s := range found {
				s.Client, s.File, s.in = c, f.path, f
				all = append(all, s)
			}
		}
	}
	return all, errs
}

func (f file) servers(text []byte) ([]Server, error) {
	if f.format == yamlList {
		return yamlServers(text, f.keys)
	}
	return jsonServers(text, f.keys)
}

// Wrap says how a server is audited.
type Wrap struct {
	Shim string // path of mcp-audit-shim
	// Options of the shim beside the names of client and server.
	Options []string
}

// ErrState is returned for a server that is not in the state to be changed.
var ErrState = errors.New("nothing to change")

// Wrap returns the file's text with the server started by the shim.
func (s *Server) Wrap(text []byte, w Wrap) ([]byte, error) {
	switch s.State() {
	case Audited:
		return nil, fmt.Errorf("%w: %s of %s is audited already", ErrState, s.Name, s.Client.Name)
	case Remote:
		return nil, fmt.Errorf("%w: %s of %s is a remote server; put a Caddy with mcp_audit in front of it and give the client that address", ErrState, s.Name, s.Client.Name)
	case Unreadable:
		return nil, fmt.Errorf("%w: %s of %s has no command", ErrState, s.Name, s.Client.Name)
	}
	options := append([]string{"--client-id", s.Client.ID, "--server-id", recordName(s.Name)}, w.Options...)
	return s.edit(text, w.Shim, slices.Concat(options, []string{"--", s.Command}, s.Arguments))
}

// recordName is a server's name as the shim takes it.
func recordName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r == '{' || r == '}' || r == 0x7f {
			return '-'
		}
		return r
	}, name)
	return name[:min(len(name), 128)]
}

// Unwrap returns the file's text with the server started by the client itself.
func (s *Server) Unwrap(text []byte) ([]byte, error) {
	i := s.wrapped()
	if i < 0 {
		return nil, fmt.Errorf("%w: %s of %s is not audited by mcp-audit-shim", ErrState, s.Name, s.Client.Name)
	}
	return s.edit(text, s.Arguments[i+1], s.Arguments[i+2:])
}

// edit replaces a server's command and arguments, and checks that nothing else
// has changed.
func (s *Server) edit(text []byte, command string, arguments []string) ([]byte, error) {
	before, err := s.in.servers(text)
	if err != nil {
		return nil, err
	}
	var out []byte
	if s.in.format == yamlList {
		out, err = s.editYAML(text, command, arguments)
	} else {
		out, err = s.editJSON(text, command, arguments)
	}
	if err != nil {
		return nil, err
	}
	after, err := s.in.servers(out)
	if err != nil || len(after) != len(before) {
		return nil, fmt.Errorf("%s could not be edited safely; change it by hand", s.File)
	}
	changed := 0
	for i := range after {
		a, b := after[i], before[i]
		switch {
		case a.Command == b.Command && slices.Equal(a.Arguments, b.Arguments) && a.Name == b.Name && a.URL == b.URL:
		case a.Name == s.Name && a.Command == command && slices.Equal(a.Arguments, arguments):
			changed++
		default:
			changed = 2
		}
	}
	if changed != 1 {
		return nil, fmt.Errorf("%s could not be edited safely; change it by hand", s.File)
	}
	return out, nil
}

// Replace puts a new text into a file's place: the old one stays beside it under
// the returned name, and there is no moment without either.
func Replace(path string, before, after []byte, stamp string) (backup string, err error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // the link stays
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != string(before) {
		return "", errors.Join(err, fmt.Errorf("%s was changed meanwhile; run the command again", path))
	}
	backup = path + ".before-mcp-audit-" + stamp
	if err := write(backup, before, info.Mode().Perm()|0o200, os.O_EXCL); err != nil {
		return "", err
	}
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".mcp-audit-"+stamp)
	if err := write(tmp, after, info.Mode().Perm()|0o200, os.O_EXCL); err != nil {
		return "", err
	}
	if err := errors.Join(os.Chmod(tmp, info.Mode().Perm()), keepOwner(tmp, info)); err != nil {
		return "", errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, path); err != nil {
		return "", errors.Join(err, os.Remove(tmp))
	}
	return backup, nil
}

func write(path string, text []byte, mode fs.FileMode, how int) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|how, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
