package jsonl

import (
	"context"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// KeepLeaves implements auditlog.SegmentStore.
func (s *Store) KeepLeaves(ctx context.Context, note []byte) error {
	head, err := auditlog.ReadTreeHead(note)
	if err != nil {
		return err
	}
	list := func() ([]auditlog.Source, error) { return Sources(s.path) }
	return s.tiles(head.Origin).Grow(ctx, note, auditlog.LeavesOf(head.Origin, list))
}

// KeptLeaves implements auditlog.SegmentStore.
func (s *Store) KeptLeaves(origin string) (auditlog.TreeHead, error) {
	head, err := s.tiles(origin).Head()
	if head.Origin != origin {
		head = auditlog.TreeHead{}
	}
	return head, err
}

func (s *Store) tiles(origin string) *auditlog.Tiles {
	return auditlog.NewTiles(s.fs, auditlog.TilesDir(s.path, origin))
}
