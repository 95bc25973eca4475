package auditlog

import (
	"context"
	"errors"
)

// Access is a reading of the log that the log itself tells of.
type Access struct {
	Action string // what was done: view or export
	Target string // what was read: a record, or the filter and format
	Actor  string // who did it
}

// Access records that the log is read through the product. It returns when the
// record is acknowledged, so that what is read can wait for it.
func (l *Log) Access(ctx context.Context, a Access) error {
	if a.Action == "" || a.Actor == "" {
		return errors.New("auditlog: an access names neither what was done nor who did it")
	}
	if err := l.mayTake(); err != nil {
		return err
	}
	d := record(kindAccess, newStamp(l.cfg.Now()),
		textMember("action", a.Action), textOrNone("target", a.Target), textMember("actor", a.Actor))
	_, err := l.submit(ctx, &entry{draft: d, kind: otherEntry})
	return err
}
