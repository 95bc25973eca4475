package auditlog

import (
	"context"
	"errors"
	"io"
	"time"
)

// SegmentStore is a Store that can close its log's file as a segment and go on
// in a new one. Only with such a store can a log be rotated.
//
// Its methods are called under the commit lock, except Compress, OpenArchive,
// KeepLeaves, KeptLeaves and Tend.
// Turn and Switch change what ReadAt, Append and Sync work on; they are never
// called while one of those runs.
type SegmentStore interface {
	Store
	// Archives lists the closed segments, by number and then by name.
	Archives() ([]Archive, error)
	// ArchiveName is the file name, without its folder, of a segment that is
	// closed at a time.
	ArchiveName(segment uint64, at time.Time) string
	// OpenArchive opens a closed segment. One that is not there, or that is
	// compressed, is fs.ErrNotExist.
	OpenArchive(segment uint64) (ArchiveFile, error)
	// StageSegment prepares, durably, the file of the next segment.
	StageSegment(content []byte) error
	// Turn gives the log's file the name of a closed segment, unless it has
	// one already and there is nothing at the log's path, and puts the staged
	// file in its place, durably. The log is then the new file.
	Turn(archive string) (StoreInfo, error)
	// Switch lets go of the file that is held and holds the one that is at the
	// log's path now, if there is one.
	Switch() (StoreInfo, error)
	// RemoveArchive deletes a closed segment and what lies beside it.
	RemoveArchive(a Archive) error
	// Compress prepares, durably, a compressed copy of a closed segment, reads it
	// back and compares its SHA-256. UseCompressed puts it in the segment's
	// place, unless the segment is gone by then.
	Compress(ctx context.Context, a Archive, want Hash) error
	UseCompressed(a Archive) error
	// KeepLeaves brings the tiles beside the log up to a signed checkpoint,
	// durably, from all files of the log. KeptLeaves is the checkpoint up to
	// which those of an origin go; the zero TreeHead if there are none.
	KeepLeaves(ctx context.Context, note []byte) error
	KeptLeaves(origin string) (TreeHead, error)
	// Tend takes a lock that only one process holds while it works on closed
	// segments. ok is false if another has it.
	Tend() (release func() error, ok bool, err error)
}

// Archive is a closed segment.
type Archive struct {
	Segment    uint64
	Name       string // file name without its folder
	Closed     time.Time
	Compressed bool
}

// ArchiveFile is a closed segment, open for reading.
type ArchiveFile interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// Period is a stretch of UTC time after which a segment is closed.
type Period int

// The periods.
const (
	Never Period = iota
	Hourly
	Daily
)

// String returns the option's text.
func (p Period) String() string {
	switch p {
	case Hourly:
		return "hour"
	case Daily:
		return "day"
	}
	return "never"
}

// begin is the start of the period that a time lies in.
func (p Period) begin(at time.Time) time.Time {
	at = at.UTC()
	if p == Hourly {
		return at.Truncate(time.Hour)
	}
	return time.Date(at.Year(), at.Month(), at.Day(), 0, 0, 0, 0, time.UTC)
}

// next is the start of the period after the one that a time lies in.
func (p Period) next(at time.Time) time.Time {
	if p == Hourly {
		return p.begin(at).Add(time.Hour)
	}
	return p.begin(at).AddDate(0, 0, 1)
}

// Rotation says when the log's file is closed as a segment, and how long
// closed segments are kept. The zero value never closes and never deletes.
type Rotation struct {
	// Size closes the file before the first record behind so many bytes. A
	// file exceeds it by one batch at most. 0: any size.
	Size int64
	// Every closes the file at the end of each hour or day, UTC, in which it
	// got a record.
	Every Period
	// KeepFor deletes segments that were closed longer ago. 0: keep them.
	KeepFor time.Duration
	// KeepFiles deletes the oldest closed segments beyond so many. 0: keep all.
	KeepFiles int
	// Compress stores closed segments compressed (gzip).
	Compress bool
}

// rotates reports whether the file is ever closed.
func (r Rotation) rotates() bool { return r.Size > 0 || r.Every != Never }

// retains reports whether anything is ever deleted.
func (r Rotation) retains() bool { return r.KeepFor > 0 || r.KeepFiles > 0 }

func (r Rotation) check() error {
	switch {
	case r.Size < 0 || r.KeepFor < 0 || r.KeepFiles < 0 || r.Every < Never || r.Every > Daily:
		return errors.New("a limit of its rotation is negative or unknown")
	case !r.rotates() && (r.retains() || r.Compress):
		return errors.New("only closed segments are deleted or compressed, but none is ever closed; set a size or a period of rotation")
	}
	return nil
}
