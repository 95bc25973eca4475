package dashboard

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/index"
	"github.com/caddy-mcp-audit/mcp-audit/verify/meaning"
)

const (
	// verifyEvery is how old a verification must be before a reader's question
	// begins another one, and verifyShare how many times as long as it took.
	verifyEvery = time.Minute
	verifyShare = 30
	// fullEvery is how old the last verification of the whole log may be; those
	// in between go on from the one before.
	fullEvery = 24 * time.Hour
	// mostFindings bounds what is told of a report.
	mostFindings = 100
)

// verifier verifies the log in the background, when somebody asks and it was
// not verified just before.
type verifier struct {
	o      Options
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	running bool
	began   time.Time
	took    time.Duration
	at      time.Time // when report was finished
	fullAt  time.Time // when the last one of the whole log was
	report  *auditlog.Report
	err     error
}

func (v *verifier) start(o Options) {
	v.o = o
	v.ctx, v.cancel = context.WithCancel(context.Background())
}

func (v *verifier) stop() {
	v.cancel()
	v.wg.Wait()
}

// ask begins a verification if it is time for one; again says that a minute is
// enough, and that the whole log is meant.
func (v *verifier) ask(again bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	if v.running || v.ctx.Err() != nil {
		return
	}
	pause := max(verifyEvery, verifyShare*v.took)
	if again {
		pause = min(5*time.Second+2*v.took, verifyEvery+v.took)
	}
	if !v.at.IsZero() && now.Sub(v.at) < pause {
		return
	}
	var from *auditlog.Cursor
	if !again && v.report != nil && now.Sub(v.fullAt) < fullEvery {
		from = v.report.Cursor()
	}
	v.running, v.began = true, now
	v.wg.Go(func() { v.verify(from) })
}

func (v *verifier) verify(from *auditlog.Cursor) {
	report, err := v.o.Log.Verify(v.ctx, from)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.running = false
	if v.ctx.Err() != nil {
		return
	}
	v.at = time.Now().UTC()
	v.took = v.at.Sub(v.began)
	if v.err = err; err != nil {
		v.o.Logger.Warn("the log could not be verified", "log", v.o.Path, "error", err)
		return
	}
	v.report = report
	if report.Resumed == nil {
		v.fullAt = v.at
	}
	if report.Exit != auditlog.ExitClean {
		v.o.Logger.Warn("the log does not verify", "log", v.o.Path, "exit", report.Exit, "findings", len(report.Findings), "first", report.FirstError)
	}
}

// vkey is the public key that the last verification checked with.
func (v *verifier) vkey() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.report == nil {
		return ""
	}
	return v.report.VKey
}

// verdict is what the last verification says of records.
func (v *verifier) verdict(found []index.Found) (string, time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.report == nil {
		return "unknown", time.Time{}
	}
	for _, f := range found {
		if f.Origin != v.report.Origin || f.Seq >= v.report.Watermarks.Records {
			return "unknown", v.at
		}
	}
	if v.report.Exit == auditlog.ExitTampered || v.report.Exit == auditlog.ExitDiverges {
		for i := range v.report.Findings {
			finding := &v.report.Findings[i]
			if finding.Class != auditlog.ClassTampered && finding.Class != auditlog.ClassDiverges {
				continue
			}
			for _, f := range found {
				if finding.Seq == nil || *finding.Seq <= f.Seq {
					return "no", v.at
				}
			}
		}
	}
	return "yes", v.at
}

// verifyAnswer is how far the log is protected.
type verifyAnswer struct {
	State      string     `json:"state"` // never, running or done
	Running    bool       `json:"running"`
	At         time.Time  `json:"at,omitzero"`      // when the report was finished
	FullAt     time.Time  `json:"full_at,omitzero"` // when the whole log was last verified
	Took       float64    `json:"took_s,omitempty"`
	Integrity  string     `json:"integrity"` // intact, incomplete, diverges, tampered or unknown
	Error      string     `json:"error,omitempty"`
	Watermarks watermarks `json:"watermarks"`
	NotCovered string     `json:"not_covered,omitempty"` // a sentence
	Findings   []finding  `json:"findings"`
	Omitted    int        `json:"omitted_findings"`
	// Report is as of `mcp-audit verify --json`, with at most 100 findings.
	Report *auditlog.Report `json:"report"`
}

// watermarks are in records, from the log's beginning.
type watermarks struct {
	Recorded     uint64  `json:"recorded"`
	Durable      *uint64 `json:"durable"` // null: the writer is in another process
	Checkpointed uint64  `json:"checkpointed"`
	Anchored     uint64  `json:"anchored"`
	Indexed      int64   `json:"indexed"`
}

type finding struct {
	auditlog.Finding
	What string `json:"what,omitempty"`
	Do   string `json:"do,omitempty"`
}

var integrityOf = map[int]string{
	auditlog.ExitClean: "intact", auditlog.ExitIncomplete: "incomplete", auditlog.ExitDiverges: "diverges", auditlog.ExitTampered: "tampered",
}

func (h *Handler) serveVerify(w http.ResponseWriter, r *http.Request) error {
	again := false
	for name, list := range r.URL.Query() {
		if name != "again" {
			return badRequest("there is no parameter %q", name)
		}
		var err error
		if again, err = flag(name, list[0]); err != nil {
			return err
		}
	}
	h.verifier.ask(again)
	a := h.verifier.answer()
	if err := h.mark(r.Context(), &a.Watermarks); err != nil {
		return err
	}
	return answer(w, a)
}

func (v *verifier) answer() *verifyAnswer {
	v.mu.Lock()
	defer v.mu.Unlock()
	a := &verifyAnswer{State: "never", Running: v.running, At: v.at, FullAt: v.fullAt, Took: v.took.Seconds(), Integrity: "unknown", Findings: []finding{}}
	switch {
	case v.running:
		a.State = "running"
	case !v.at.IsZero():
		a.State = "done"
	}
	if v.err != nil {
		a.Error = v.err.Error()
	}
	if v.report == nil {
		return a
	}
	a.Integrity, a.NotCovered = integrityOf[v.report.Exit], v.report.NotCoveredSentence()
	if a.Integrity == "" {
		a.Integrity = "unknown"
	}
	report := *v.report
	if a.Omitted = len(report.Findings) - mostFindings; a.Omitted > 0 {
		report.Findings = report.Findings[:mostFindings]
	} else {
		a.Omitted = 0
	}
	for _, f := range report.Findings {
		text, _ := meaning.Finding(f.Kind)
		a.Findings = append(a.Findings, finding{f, text.What, text.Do})
	}
	a.Report = &report
	a.Watermarks = watermarks{
		Recorded: report.Watermarks.Records, Checkpointed: report.Watermarks.Checkpointed, Anchored: report.Watermarks.Anchored,
	}
	return a
}

// mark adds what is known without a verification.
func (h *Handler) mark(ctx context.Context, m *watermarks) error {
	x, _, err := h.follower.current()
	if err != nil {
		return err
	}
	extent, err := x.Extent(ctx)
	if err != nil {
		return err
	}
	m.Indexed = extent.Records
	if s := h.status(); s != nil {
		durable := s.Durable
		m.Durable = &durable
		m.Recorded = max(m.Recorded, s.Records)
		m.Checkpointed = max(m.Checkpointed, s.Checkpointed)
		for _, a := range s.Anchors {
			m.Anchored = max(m.Anchored, a.Size)
		}
	} else {
		m.Recorded = max(m.Recorded, uint64(extent.Records))
	}
	return nil
}
