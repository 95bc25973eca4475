package legacy

import (
	"fmt"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// maxFindings bounds how many runs of one kind a report lists. What is beyond
// is counted in one further finding.
const maxFindings = 1000

// findings collects what was found, in the order of the lines, and joins equal
// findings on consecutive lines. It is not safe for concurrent use.
type findings struct {
	all   []*auditlog.Finding
	kinds map[string]*run
	worst map[string]bool // classes
	first string          // the first finding of class T, as a sentence
}

type run struct {
	newest   *auditlog.Finding
	last     int // line
	runs     int
	overflow *auditlog.Finding
}

func newFindings() *findings {
	return &findings{kinds: map[string]*run{}, worst: map[string]bool{}}
}

// add notes a finding on a line of a file; line 0 is the log as a whole.
func (f *findings) add(kind, class, file string, line int, format string, args ...any) {
	f.worst[class] = true
	detail := fmt.Sprintf(format, args...)
	if class == auditlog.ClassTampered && f.first == "" {
		f.first = kind + ": " + detail
		if line > 0 {
			f.first = fmt.Sprintf("%s line %d: %s", file, line, f.first)
		}
	}
	key := kind + class
	r := f.kinds[key]
	if r == nil {
		r = &run{}
		f.kinds[key] = r
	}
	if n := r.newest; n != nil && line > 0 && n.Line > 0 && n.File == file && r.last+1 == line {
		n.Count++
		r.last = line
		return
	}
	if r.runs >= maxFindings {
		if r.overflow == nil {
			r.overflow = &auditlog.Finding{Kind: kind, Class: class, Detail: fmt.Sprintf("further findings of this kind, beyond the first %d", maxFindings)}
			f.all = append(f.all, r.overflow)
		}
		r.overflow.Count++
		return
	}
	r.runs++
	found := &auditlog.Finding{Kind: kind, Class: class, Line: line, Count: 1, Detail: detail}
	if line > 0 {
		found.File = file
	}
	r.newest, r.last = found, line
	f.all = append(f.all, found)
}

func (f *findings) list() []auditlog.Finding {
	list := make([]auditlog.Finding, len(f.all))
	for i, found := range f.all {
		list[i] = *found
	}
	return list
}

// exit is the exit code of the findings, as for logs of this product.
func (f *findings) exit(strict bool) int {
	switch {
	case f.worst[auditlog.ClassTampered] || strict && f.worst[auditlog.ClassWarning]:
		return auditlog.ExitTampered
	case f.worst[auditlog.ClassDiverges]:
		return auditlog.ExitDiverges
	case f.worst[auditlog.ClassIncomplete]:
		return auditlog.ExitIncomplete
	}
	return auditlog.ExitClean
}
