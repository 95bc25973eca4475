// Package pins remembers the definitions of tools as they were first seen, and
// tells when a server changes one. It knows nothing of Caddy.
//
// The definitions lie in a file of mode 0600 that several processes may use: it
// is locked for each change, replaced as a whole, and read again when another
// process has changed it. One that cannot be read is an error of every call, so
// that nobody takes a missing pin for a tool that was never seen.
package pins

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// The kinds of change.
const (
	New      = "new"      // pinned at sight
	Changed  = "changed"  // another definition under a pinned name
	Renamed  = "renamed"  // the definition of a pinned tool that is gone, under another name
	Removed  = "removed"  // a pinned tool is not listed any more
	Restored = "restored" // a tool is again what is pinned
)

// Definition is what is pinned of a tool.
type Definition struct {
	Digest string          `json:"digest"` // of Tool: base64url of its SHA-256
	Body   string          `json:"body"`   // the same without the name
	Tool   json.RawMessage `json:"tool"`   // in canonical form (RFC 8785)
	Since  time.Time       `json:"since"`
}

// Pin is one tool of a server.
type Pin struct {
	Pinned *Definition `json:"pinned,omitempty"` // nil: a renamed tool that nobody approved
	// Pending is a definition that waits for an approval, if there is one.
	Pending *Definition `json:"pending,omitempty"`
	Why     string      `json:"why,omitempty"`  // of Pending: changed or renamed
	From    string      `json:"from,omitempty"` // of a renamed tool: its former name
	Gone    bool        `json:"gone,omitempty"` // it was not listed when last looked
	// Rejected is the digest of Pending if that was turned down.
	Rejected string `json:"rejected,omitempty"`
}

// Change is a difference between what is pinned and what a server lists.
type Change struct {
	Tool string
	Kind string
	From string // of a renamed tool
	Old  json.RawMessage
	New  json.RawMessage
}

// file is the form of a pin file.
type file struct {
	Version int                        `json:"version"`
	Servers map[string]map[string]*Pin `json:"servers"`
}

const fileVersion = 1

// maxFile bounds the size of a pin file, maxTools the tools of one server.
const (
	maxFile  = 64 << 20
	maxTools = 10_000
)

// Store is a pin file. It is safe for concurrent use.
type Store struct {
	path string

	mu    sync.Mutex
	state *file
	info  fs.FileInfo // of the file that state was read from; nil: there was none
	err   error
}

// Open reads a pin file. One that is not there is empty, and made with the first
// pin.
func Open(path string) (*Store, error) {
	s := &Store{path: path}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s, s.refresh()
}

// Path is that of the file.
func (s *Store) Path() string { return s.path }

// refresh reads the file if it is another one than last time.
func (s *Store) refresh() error {
	info, err := os.Lstat(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		if s.info != nil {
			return s.fault(errors.New("it is gone"))
		}
		if s.state == nil {
			s.state = &file{Version: fileVersion, Servers: map[string]map[string]*Pin{}}
		}
		return s.err
	}
	if err != nil {
		return s.fault(err)
	}
	if s.info != nil && os.SameFile(info, s.info) && info.Size() == s.info.Size() && info.ModTime().Equal(s.info.ModTime()) {
		return s.err
	}
	state, err := read(s.path, info)
	if err != nil {
		return s.fault(err)
	}
	s.state, s.info, s.err = state, info, nil
	return nil
}

func (s *Store) fault(err error) error {
	s.err = fmt.Errorf("the pin file %s cannot be used: %w; put it back as it was, or remove it together with %s.lock to pin anew", s.path, err, s.path)
	return s.err
}

func read(path string, info fs.FileInfo) (*file, error) {
	switch {
	case !info.Mode().IsRegular():
		return nil, errors.New("it is no regular file")
	case info.Size() > maxFile:
		return nil, fmt.Errorf("it is larger than %d bytes", maxFile)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if v := canon.Check(text); v != canon.None && v != canon.Keys {
		return nil, fmt.Errorf("it is no strict JSON (%s)", v)
	}
	var f file
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, errors.New("it is no JSON of the expected form")
	}
	if f.Version != fileVersion {
		return nil, fmt.Errorf("its version is %d, not %d", f.Version, fileVersion)
	}
	for server, tools := range f.Servers {
		for name, p := range tools {
			if p == nil || p.Pinned == nil && p.Pending == nil {
				return nil, fmt.Errorf("tool %q of server %q has no definition", name, server)
			}
			for _, d := range []*Definition{p.Pinned, p.Pending} {
				if d == nil {
					continue
				}
				if now, ok := define(d.Tool); !ok || now.Digest != d.Digest || now.Body != d.Body {
					return nil, fmt.Errorf("the digest of tool %q of server %q is not that of its definition", name, server)
				}
			}
		}
	}
	if f.Servers == nil {
		f.Servers = map[string]map[string]*Pin{}
	}
	return &f, nil
}

// change runs do under the lock that other processes take, and writes the file
// if do says so.
func (s *Store) change(do func() (write bool)) (err error) {
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return err
	}
	lock, err := fsys.OS().OpenFile(s.path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := lock.Lock(); err != nil {
		return err
	}
	if err := s.refresh(); err != nil {
		return err
	}
	if !do() {
		return nil
	}
	text, err := json.MarshalIndent(s.state, "", " ")
	if err != nil {
		return err
	}
	if err := replace(s.path, append(text, '\n')); err != nil {
		return err
	}
	s.info, err = os.Lstat(s.path)
	return err
}

// replace puts a file in its place as a whole, durably.
func replace(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return fsys.OS().SyncDir(filepath.Dir(path))
}

// define makes the definition of a tool as a list has it. Only what a model or
// a user goes by counts: name, title, description, schemas and annotations, in
// canonical form, so that their order does not matter.
func define(tool []byte) (d Definition, ok bool) {
	parts := map[string][]byte{}
	ok = true
	mcp.Members(tool, func(name, value []byte) {
		switch string(name) {
		case "annotations", "description", "inputSchema", "name", "outputSchema", "title":
			if _, twice := parts[string(name)]; twice {
				ok = false
			}
			out, why := canon.Append(nil, value)
			ok = ok && why == canon.None
			parts[string(name)] = out
		}
	})
	if !ok || len(parts["name"]) == 0 {
		return d, false
	}
	write := func(leave string) []byte {
		b := []byte{'{'}
		for _, name := range []string{"annotations", "description", "inputSchema", "name", "outputSchema", "title"} {
			if value, have := parts[name]; have && name != leave {
				if len(b) > 1 {
					b = append(b, ',')
				}
				b = append(append(append(b, '"'), name...), `":`...)
				b = append(b, value...)
			}
		}
		return append(b, '}')
	}
	whole := write("")
	d.Digest, d.Body, d.Tool = digest(whole), digest(write("name")), whole
	return d, true
}

// Digest is that of a definition in canonical form.
func Digest(tool []byte) string { return digest(tool) }

func digest(text []byte) string {
	h := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(h[:])
}

// Listed is a tool as a server lists it.
type Listed struct {
	Name string
	Text []byte
}

// See takes in what a server lists. whole says that it is all of its tools, so
// that one which is not there is gone. It returns what is new since the last
// time; a change that was told before is not told again.
func (s *Store) See(server string, tools []Listed, whole bool, now time.Time) (changes []Change, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refresh(); err != nil {
		return nil, err
	}
	if !s.news(server, tools, whole) {
		return nil, nil
	}
	err = s.change(func() bool {
		changes = s.take(server, tools, whole, now.UTC().Truncate(time.Second))
		return len(changes) > 0
	})
	return changes, err
}

// news reports whether a list has anything that is not known, without a lock on
// the file: most lists have not.
func (s *Store) news(server string, tools []Listed, whole bool) bool {
	known := s.state.Servers[server]
	for _, t := range tools {
		p := known[t.Name]
		d, ok := define(t.Text)
		if !ok {
			continue
		}
		if p == nil || p.Gone || (p.Pinned == nil || p.Pinned.Digest != d.Digest) && (p.Pending == nil || p.Pending.Digest != d.Digest) ||
			p.Pinned != nil && p.Pinned.Digest == d.Digest && p.Pending != nil {
			return true
		}
	}
	if !whole {
		return false
	}
	for name, p := range known {
		if !p.Gone && p.Pinned != nil && !slices.ContainsFunc(tools, func(t Listed) bool { return t.Name == name }) {
			return true
		}
	}
	return false
}

func (s *Store) take(server string, tools []Listed, whole bool, now time.Time) (changes []Change) {
	known := s.state.Servers[server]
	first := known == nil
	if first {
		known = map[string]*Pin{}
	}
	listed := map[string]bool{}
	for _, t := range tools {
		listed[t.Name] = true
	}
	for _, t := range tools {
		d, ok := define(t.Text)
		if !ok {
			continue
		}
		d.Since = now
		p := known[t.Name]
		switch {
		case p == nil && len(known) >= maxTools:
		case p == nil:
			from := ""
			if !first {
				from = renamed(known, listed, d.Body)
			}
			if from != "" {
				known[t.Name] = &Pin{Pending: &d, Why: Renamed, From: from}
				changes = append(changes, Change{Tool: t.Name, Kind: Renamed, From: from, Old: known[from].Pinned.Tool, New: d.Tool})
				continue
			}
			known[t.Name] = &Pin{Pinned: &d}
			changes = append(changes, Change{Tool: t.Name, Kind: New, New: d.Tool})
		case p.Pinned != nil && p.Pinned.Digest == d.Digest:
			if p.Gone || p.Pending != nil {
				// It is what it was.
				p.Gone, p.Pending, p.Why = false, nil, ""
				changes = append(changes, Change{Tool: t.Name, Kind: Restored, New: d.Tool})
			}
		case p.Pending != nil && p.Pending.Digest == d.Digest:
			p.Gone = false
		default:
			var old json.RawMessage
			if p.Pinned != nil {
				old = p.Pinned.Tool
			}
			if p.Why != Renamed {
				p.Why = Changed
			}
			p.Pending, p.Gone = &d, false
			changes = append(changes, Change{Tool: t.Name, Kind: Changed, Old: old, New: d.Tool})
		}
	}
	if whole {
		for name, p := range known {
			if !listed[name] && !p.Gone && p.Pinned != nil {
				p.Gone = true
				changes = append(changes, Change{Tool: name, Kind: Removed, Old: p.Pinned.Tool})
			}
		}
	}
	s.state.Servers[server] = known
	return changes
}

// renamed finds a pinned tool that is not listed and has the same definition but
// for its name.
func renamed(known map[string]*Pin, listed map[string]bool, body string) string {
	found := ""
	for name, p := range known {
		if p.Pinned != nil && p.Pinned.Body == body && !listed[name] && (found == "" || name < found) {
			found = name
		}
	}
	return found
}

// Withheld reports whether a tool must not be listed or called as it was last
// seen: its definition waits for an approval, or was turned down.
func (s *Store) Withheld(server, tool string) (why string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refresh(); err != nil {
		return "", err
	}
	p := s.state.Servers[server][tool]
	if p == nil || p.Pending == nil {
		return "", nil
	}
	return p.Why, nil
}

// Entry is a pin of a server's tool.
type Entry struct {
	Server, Tool string
	Pin
}

// List returns all pins, in order.
func (s *Store) List() (all []Entry, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refresh(); err != nil {
		return nil, err
	}
	for server, tools := range s.state.Servers {
		for name, p := range tools {
			all = append(all, Entry{server, name, *p})
		}
	}
	slices.SortFunc(all, func(a, b Entry) int {
		if a.Server != b.Server {
			return compare(a.Server, b.Server)
		}
		return compare(a.Tool, b.Tool)
	})
	return all, nil
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// ErrNothingPending is returned for a tool that waits for no approval.
var ErrNothingPending = errors.New("no definition of it waits for an approval")

// Approve pins the definition that waits; Reject turns it down: the tool stays
// withheld until its server goes back to what is pinned.
func (s *Store) Approve(server, tool string) (Entry, error) {
	return s.settle(server, tool, func(p *Pin) {
		p.Pinned, p.Pending, p.Why, p.From, p.Rejected = p.Pending, nil, "", "", ""
	})
}

// Reject is described at Approve.
func (s *Store) Reject(server, tool string) (Entry, error) {
	return s.settle(server, tool, func(p *Pin) { p.Rejected = p.Pending.Digest })
}

func (s *Store) settle(server, tool string, how func(*Pin)) (e Entry, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	none := fmt.Errorf("tool %q of server %q: %w", tool, server, ErrNothingPending)
	found := false
	err = s.change(func() bool {
		p := s.state.Servers[server][tool]
		if p == nil || p.Pending == nil {
			return false
		}
		e = Entry{server, tool, *p}
		how(p)
		found = true
		return true
	})
	if err == nil && !found {
		err = none
	}
	return e, err
}
