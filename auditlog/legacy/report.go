package legacy

import (
	"fmt"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// Report is the result of Verify. Members that reports on logs of this product
// have, too, mean the same there.
type Report struct {
	Format  Format         `json:"format"`
	Promise string         `json:"promise"`
	Records int            `json:"records"` // lines or rows that are records of the format
	Kinds   map[string]int `json:"kinds"`
	// Statuses counts the records by status. Worst is the worst of them.
	Statuses map[Status]int `json:"statuses"`
	Worst    Status         `json:"worst,omitempty"`
	MAC      string         `json:"mac"`

	Watermarks auditlog.Watermarks `json:"watermarks"` // Checkpointed is always 0
	// NotCovered is the range of lines, counted from 1, that no external
	// anchor covers; it is empty if the first number is above the second.
	NotCovered [2]uint64          `json:"not_covered"`
	Findings   []auditlog.Finding `json:"findings"`

	Verified   int    `json:"verified"`
	Invalid    int    `json:"invalid"`
	Legacy     int    `json:"legacy"`
	Unsigned   int    `json:"unsigned"`
	Total      int    `json:"total"`
	FirstError string `json:"first_error,omitempty"`

	Exit int `json:"exit"`
}

// NotCoveredSentence says which records no external anchor covers.
func (r *Report) NotCoveredSentence() string {
	from, to := r.NotCovered[0], r.NotCovered[1]
	if from > to {
		return fmt.Sprintf("0 of %d records are not covered by any external anchor", r.Total)
	}
	return fmt.Sprintf("records %d..%d are not covered by any external anchor", from, to)
}

// count notes the status of one record.
func (r *Report) count(s Status) {
	r.Total++
	if s != Unreadable {
		r.Records++
	}
	r.Statuses[s]++
	switch s {
	case V2Valid, ChainSigned:
		r.Verified++
	case LegacyOnly:
		r.Legacy++
	case Unsigned:
		r.Unsigned++
	case LegacyInvalid, LegacyConflict, Unreadable:
		r.Invalid++
	}
}

func (r *Report) worst() Status {
	for i := len(statuses) - 1; i >= 0; i-- {
		if r.Statuses[statuses[i]] > 0 {
			return statuses[i]
		}
	}
	return ""
}
