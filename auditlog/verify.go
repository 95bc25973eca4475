package auditlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"
)

// The exit codes of verification, in Report.Exit.
const (
	ExitClean      = 0
	ExitTampered   = 1 // a finding of class T, or of class W under Strict
	ExitUnreadable = 2 // a source could not be read, or the options are wrong
	ExitIncomplete = 3 // a finding of class I
	ExitDiverges   = 4 // a finding of class D
)

// Source is one file of a log. Open may be called more than once and must give
// the same bytes each time; a log that grows meanwhile may give more.
type Source struct {
	Name string
	Open func() (io.ReadCloser, error)
	// Check, if not nil, looks for faults of how the source is stored, beyond
	// its lines. It is called once, after the lines were read.
	Check func(ctx context.Context, found FoundFunc) error
}

// FoundFunc takes a finding about a line of a source, counted from 1, or about
// the source as a whole, line 0.
type FoundFunc func(finding string, line int, detail string)

// FileSource is a source that reads a file.
func FileSource(path string) Source {
	return Source{Name: path, Open: func() (io.ReadCloser, error) { return os.Open(path) }}
}

// Anchor is a signed checkpoint that the verifier holds, and where it is from.
type Anchor struct {
	Name string
	Note []byte
}

// VerifyOptions says what Verify checks against. The zero value checks what
// can be checked without keys.
type VerifyOptions struct {
	// Keys holds MAC keys by key id; Secret is the operator's secret, from
	// which MAC keys are derived. If both are given, the one that fits the
	// first record counts for the whole log. Neither: MACs are not checked.
	Keys   *Keyring
	Secret []byte
	// KeyID, with Secret, is the only key id that is accepted, besides those
	// that incarnations derive from it (KeyID-i1 …). "": any that the log names.
	KeyID string
	// PublicKey is a verifier key (vkey) that checkpoints must be signed with.
	// "": the one that the log itself names.
	PublicKey string
	// Origin is the expected origin, with or without its incarnation ("/i0").
	// "": that of PublicKey, else that of the first record, unpinned.
	Origin string
	// Anchors are checkpoints kept where the log's writer cannot change them.
	Anchors []Anchor
	// Witnesses are verifier keys of witnesses (type 0x04). Their signatures on
	// anchors are checked, and an anchor that lies beside the log counts as an
	// external one if one of them cosigned it.
	Witnesses []string
	// Beside are the checkpoint files that lie beside the log. They are checked
	// as anchors are, but protect against nobody who can write to the log.
	Beside []Anchor
	// Manifest is the text of the log's manifest of closed segments. The names of
	// the sources must then be those of the files. nil: none.
	Manifest []byte
	// ManifestKept says that the manifest was kept from an earlier time, so that
	// segments that were closed after its newest one are not in it.
	ManifestKept bool
	// Cursor is where an earlier verification of this log ended, and CursorName
	// how it is called in findings. The records before it are not read again, if
	// the cursor was made with options that check as much, and the log still has
	// the record that it was made at; else the log is verified from its
	// beginning, the report says why, and the cursor is compared with it as an
	// anchor is. nil: none.
	Cursor     *Cursor
	CursorName string
	// LeftOut is the number of older files that the caller left out on purpose.
	LeftOut int
	// Closed demands that the last file ends with segment_end.
	Closed bool
	// Strict checks the exact form of every body, and makes warnings count.
	Strict bool
	// MaxSilence is the greatest age of the newest record. 0: any.
	MaxSilence time.Duration
	// MaxUncheckpointed is the greatest number of records without a valid
	// checkpoint behind them. 0: any.
	MaxUncheckpointed int
	// MaxErasures is the number of erasures above which they count as
	// tampering. 0: any number; below 0: none is allowed.
	MaxErasures int
	// MaxLine is the longest line in bytes. 0: 32 MiB.
	MaxLine int
	// Jobs is the number of goroutines that hash. 0: GOMAXPROCS.
	Jobs int
	// Now is the time that MaxSilence and time_future are judged at. nil: time.Now.
	Now func() time.Time
}

// MAC says how far record MACs were checked, in Report.MAC.
const (
	MACChecked   = "checked"
	MACUnchecked = "not checked"
)

// Watermarks says how far the last incarnation of the log is protected, in
// records from its beginning.
type Watermarks struct {
	Records      uint64 `json:"records"`
	Checkpointed uint64 `json:"checkpointed"` // covered by a valid checkpoint in the log
	Beside       uint64 `json:"checkpoint_file,omitempty"`
	Anchored     uint64 `json:"anchored"` // covered by an external anchor
	// AnchoredBy lists the anchors that the log agrees with.
	AnchoredBy []AnchoredBy `json:"anchored_by,omitempty"`
}

// AnchoredBy is an external anchor that the log agrees with.
type AnchoredBy struct {
	Name   string `json:"name"`
	Origin string `json:"origin"`
	Size   uint64 `json:"size"`
	// Until is the time of the newest record that it covers.
	Until time.Time `json:"until,omitzero"`
	// Witnesses are the known witnesses that cosigned it.
	Witnesses []Cosignature `json:"witnesses,omitempty"`
}

// Report is the result of Verify.
type Report struct {
	Origin       string         `json:"origin"`
	OriginPinned bool           `json:"origin_pinned"`
	VKey         string         `json:"vkey,omitempty"` // that checkpoints were checked with last
	Records      uint64         `json:"records"`        // records that were accepted
	First        uint64         `json:"first_seq"`
	Kinds        map[string]int `json:"kinds"`
	MAC          string         `json:"mac"`
	Watermarks   Watermarks     `json:"watermarks"`
	// NotCovered is the range of records, counted from 1, that no external
	// anchor covers; it is empty if the first number is above the second.
	NotCovered [2]uint64 `json:"not_covered"`
	Findings   []Finding `json:"findings"`
	// Retired, if not 0, is the number of the records before the first one that
	// is there, which were deleted by retention, as the log itself says.
	Retired uint64 `json:"retired,omitempty"`
	// OpenIntents is the number of operations without an outcome, UnknownOutcomes
	// that of operations closed by recovery.
	OpenIntents     int `json:"open_intents"`
	UnknownOutcomes int `json:"unknown_outcomes"`

	// The counts of the reference system, in lines.
	Verified   int    `json:"verified"`
	Invalid    int    `json:"invalid"`
	Legacy     int    `json:"legacy"`
	Unsigned   int    `json:"unsigned"`
	Total      int    `json:"total"`
	FirstError string `json:"first_error,omitempty"`

	// Resumed says that records before a cursor were not read again. The counts
	// are then those of what was read, Watermarks those of the whole log.
	Resumed *Resumption `json:"resumed,omitempty"`
	// CursorUnused says why the log was verified from its beginning though a
	// cursor was given.
	CursorUnused string `json:"cursor_unused,omitempty"`

	Exit int `json:"exit"`

	cursor *Cursor
}

// Resumption says where a verification went on.
type Resumption struct {
	Records    uint64    `json:"records"` // verified earlier, from the log's beginning
	VerifiedAt time.Time `json:"verified_at"`
}

// Cursor is where a later verification can go on, or nil if this one found
// that the log is not what was written, or did not read it to its end.
func (r *Report) Cursor() *Cursor { return r.cursor }

// NotCoveredSentence says which records no external anchor covers.
func (r *Report) NotCoveredSentence() string {
	from, to := r.NotCovered[0], r.NotCovered[1]
	if from > to {
		return fmt.Sprintf("0 of %d records are not covered by any external anchor", r.Watermarks.Records)
	}
	return fmt.Sprintf("records %d..%d are not covered by any external anchor", from, to)
}

// Verify checks a log: its sources, in order, are the files of one log, oldest
// first. It reads them as streams, in bounded memory whatever their size (open
// operations, erased fields and findings take memory), and hashes on Jobs
// goroutines. Faults do not end it: the report has them all. A log that is
// written to meanwhile may be verified.
//
// The error is not nil if the options are wrong or a source could not be read;
// then the report, if not nil, has what was found up to there and Exit is
// ExitUnreadable. It is safe to run several verifications at once.
func Verify(ctx context.Context, sources []Source, opts VerifyOptions) (*Report, error) {
	if len(sources) == 0 {
		return nil, errors.New("verify: no log file is given")
	}
	opts.fill()
	j, err := newJudge(sources, opts)
	if err != nil {
		return nil, err
	}
	if j, sources, err = j.goOn(ctx, sources); err != nil {
		return nil, err
	}
	scan := &scanConfig{jobs: opts.Jobs, maxLine: opts.MaxLine, strict: opts.Strict, crypto: true, keys: j.keys, hashed: j.hashed}
	if j.resumed {
		scan.origin = j.inc.origin
	}
	err = scanSources(ctx, sources, scan, j)
	if err == nil {
		err = j.settleSuspects(ctx, sources)
	}
	if err == nil {
		err = j.checkStores(ctx, sources)
	}
	cursor := j.cursor()
	report := j.finish()
	if err == nil && report.Exit != ExitTampered && !j.f.worst[0] && !j.f.worst[1] {
		report.cursor = cursor
	}
	if err != nil {
		report.Exit = ExitUnreadable
		return report, err
	}
	return report, nil
}

// checkStores adds what is found about how sources are stored.
func (j *judge) checkStores(ctx context.Context, sources []Source) error {
	for i, s := range sources {
		if s.Check == nil {
			continue
		}
		err := s.Check(ctx, func(finding string, line int, detail string) {
			j.findAt(place{file: i, line: line, whole: line == 0}, finding, "%s", detail)
		})
		if err != nil {
			return fmt.Errorf("checking %s: %w", s.Name, err)
		}
	}
	return nil
}

func (o *VerifyOptions) fill() {
	if o.MaxLine <= 0 {
		o.MaxLine = MaxLine
	}
	if o.Jobs <= 0 {
		o.Jobs = runtime.GOMAXPROCS(0)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}
