package auditlog

import "time"

// BatchReport is what became of one batch of records: how many it had, how long the
// store took for it, with the disk's barrier where Durable asks for one, and
// why it failed, if it did.
type BatchReport struct {
	Records    int
	Took       time.Duration
	Durability Durability
	Err        error
}

// observe tells the configured observer of a batch that had work.
func (l *Log) observe(records int, began time.Time, durability Durability, err error) {
	if l.cfg.Observe != nil && (records > 0 || err != nil) {
		l.cfg.Observe(BatchReport{Records: records, Took: time.Since(began), Durability: durability, Err: err})
	}
}
