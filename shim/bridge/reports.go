package bridge

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
)

// ReportHeader is, on a GET, the question what the shim has to tell of its
// child beside the child's messages; on the answer, that it is one. The
// question goes through the audited route, which records the answer.
const ReportHeader = "Mcp-Shim-Report"

// Kinds of reports.
const (
	ReportLaunch = "launch" // how the child was started
	ReportStdout = "stdout" // what it wrote that is no message
	ReportStderr = "stderr" // what it wrote to its standard error
)

// Output is the report of lines that a child wrote. Lines beyond the bounds are
// counted.
type Output struct {
	Report  string   `json:"report"`
	Lines   []string `json:"lines"`
	Dropped int      `json:"dropped,omitempty"`
}

// Bounds of the output between two questions.
const (
	reportedLines = 64
	reportedBytes = 16 << 10
	reportedLine  = 2 << 10
)

// reports are those that wait for the next question.
type reports struct {
	mu      sync.Mutex
	launch  json.RawMessage
	outputs map[string]*Output
	bytes   int
	waiting chan struct{} // has one element when there is something
}

// Launch reports how the child was started, as a JSON object whose member
// "report" is "launch".
func (b *Bridge) Launch(report json.RawMessage) {
	r := &b.reports
	r.mu.Lock()
	defer r.mu.Unlock()
	r.launch = report
	r.wake()
}

// Wrote reports a line of output.
func (b *Bridge) Wrote(kind string, line []byte) {
	text := strings.ToValidUTF8(string(line[:min(len(line), reportedLine)]), "�")
	if len(line) > reportedLine {
		text += "…"
	}
	r := &b.reports
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.outputs == nil {
		r.outputs = make(map[string]*Output)
	}
	o := r.outputs[kind]
	if o == nil {
		o = &Output{Report: kind, Lines: []string{}}
		r.outputs[kind] = o
	}
	if len(o.Lines) >= reportedLines || r.bytes+len(text) > reportedBytes {
		o.Dropped++
	} else {
		o.Lines, r.bytes = append(o.Lines, text), r.bytes+len(text)
	}
	r.wake()
}

func (r *reports) wake() {
	select {
	case r.waiting <- struct{}{}:
	default:
	}
}

// Reports has an element when there is something to ask for.
func (b *Bridge) Reports() <-chan struct{} { return b.reports.waiting }

// take returns the reports that wait, one JSON object a line.
func (r *reports) take() (body []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.launch != nil {
		body = append(append(body, r.launch...), '\n')
	}
	for _, kind := range []string{ReportStdout, ReportStderr} {
		if o := r.outputs[kind]; o != nil {
			line, _ := json.Marshal(o) // strings always marshal
			body = append(append(body, line...), '\n')
		}
	}
	r.launch, r.outputs, r.bytes = nil, nil, 0
	return body
}

func (b *Bridge) report(w http.ResponseWriter) {
	w.Header().Set(ReportHeader, "1")
	w.Header().Set("Content-Type", "application/x-ndjson")
	_, _ = w.Write(b.reports.take())
}
