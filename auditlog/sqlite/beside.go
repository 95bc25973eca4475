//go:build cgo

package sqlite

import "github.com/caddy-mcp-audit/mcp-audit/auditlog"

// The lock, the documents, the registered runs and the reserve lie beside the
// database as files, exactly as they do beside a JSONL log. The state is not in
// the database on purpose: whoever takes away the database's newest part, for
// example by deleting its -wal file, would take the state's newest part with it.

// Open implements auditlog.Store.
func (s *Store) Open(run string) error {
	s.run = run
	return s.beside.Open(run)
}

// Lock implements auditlog.Store: flock on DB.lock.
func (s *Store) Lock() error { return s.beside.Lock() }

// Unlock implements auditlog.Store.
func (s *Store) Unlock() error { return s.beside.Unlock() }

// Load implements auditlog.Store.
func (s *Store) Load(d auditlog.Document) ([]byte, error) { return s.beside.Load(d) }

// Stage implements auditlog.Store.
func (s *Store) Stage(d auditlog.Document, data []byte) error { return s.beside.Stage(d, data) }

// Publish implements auditlog.Store.
func (s *Store) Publish(d auditlog.Document) error { return s.beside.Publish(d) }

// SyncFolder implements auditlog.Store.
func (s *Store) SyncFolder() error { return s.beside.SyncFolder() }

// Reserve implements auditlog.Store.
func (s *Store) Reserve() error { return s.beside.Reserve() }

// Release implements auditlog.Store.
func (s *Store) Release() error { return s.beside.Release() }

// Register implements auditlog.Store.
func (s *Store) Register() error { return s.beside.Register() }

// Alive implements auditlog.Store.
func (s *Store) Alive(run string) (bool, error) { return s.beside.Alive(run) }

// Runs implements auditlog.Store.
func (s *Store) Runs() ([]string, error) { return s.beside.Runs() }

// Forget implements auditlog.Store.
func (s *Store) Forget(run string) error { return s.beside.Forget(run) }
