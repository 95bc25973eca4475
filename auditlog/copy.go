package auditlog

// CopiedKind is a kind of record that a Copier is told of.
type CopiedKind int

// The values of CopiedKind.
const (
	CopiedIntent CopiedKind = iota
	CopiedOutcome
	CopiedEvent
)

// Copied is a record that is in the log now.
type Copied struct {
	Kind CopiedKind
	// Intent is the seq of the operation's intent: of this record, or of the
	// one that an outcome closes. It is 0 for an event.
	Intent uint64
	// Body is the record's body, canonical JSON, valid during the call only.
	Body []byte
}

// Copier makes a further copy of what a Log records, outside of its chain. A
// Log tells it of each intent, outcome and event that it appended itself, in
// their order, and closes it when it is closed.
//
// Copy is called between commits, by one goroutine at a time: it must not
// block, and whatever happens to the copy is its own affair.
type Copier interface {
	Copy(c Copied)
	Status() CopyStatus
	// Close writes what is queued and gives the files back. Calls of Copy
	// behind it do nothing.
	Close() error
}

// CopyStatus is how a Copier is at one moment.
type CopyStatus struct {
	Path    string `json:"path"`
	Written uint64 `json:"written"` // entries
	Dropped uint64 `json:"dropped"` // entries for which there was no space in memory
	Failed  uint64 `json:"failed"`  // entries that could not be made or written
	Err     string `json:"error,omitempty"`
}

// copyOut tells the Copier of records that were just appended.
func (l *Log) copyOut(entries []*entry) {
	if l.cfg.Copier == nil {
		return
	}
	for _, e := range entries {
		switch e.kind {
		case intentEntry:
			l.cfg.Copier.Copy(Copied{Kind: CopiedIntent, Intent: e.seq, Body: e.plain()})
		case outcomeEntry:
			l.cfg.Copier.Copy(Copied{Kind: CopiedOutcome, Intent: e.intentSeq, Body: e.plain()})
		case eventEntry:
			l.cfg.Copier.Copy(Copied{Kind: CopiedEvent, Body: e.plain()})
		}
	}
}
