package auditlog_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

func TestParallelCallsShareCommits(t *testing.T) {
	path := quickPath(t)
	layer := newFaulty(nil)
	var mu sync.Mutex
	writes := 0
	layer.onOp = func(op, name string) {
		if op == "write" && name == path {
			mu.Lock()
			writes++
			mu.Unlock()
			// A disk that takes its time, so that records queue.
			time.Sleep(2 * time.Millisecond)
		}
	}
	l := setup{fs: layer}.open(t, path)
	const callers, calls = 64, 10
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range calls {
				call(t, l)
			}
		})
	}
	wg.Wait()
	if writes > callers*calls*2/8 {
		t.Errorf("%d writes for %d records: they are not grouped", writes, callers*calls*2)
	}
	closeLog(t, l)
	if open := openIntents(check(t, path)); len(open) > 0 {
		t.Errorf("intents %v have no outcome", open)
	}
}

// stuck makes appends wait until it is released.
func stuck(layer *faulty, path string) (entered chan struct{}, release func()) {
	entered, gate := make(chan struct{}, 100), make(chan struct{})
	layer.mu.Lock()
	defer layer.mu.Unlock()
	layer.plan = func(_ int, op, name string) error {
		if op == "write" && name == path {
			entered <- struct{}{}
			<-gate
		}
		return nil
	}
	return entered, sync.OnceFunc(func() { close(gate) })
}

func TestAnIntentGivenUpWhileItIsWrittenIsClosedByTheLog(t *testing.T) {
	path := quickPath(t)
	layer := newFaulty(nil)
	l := setup{fs: layer}.open(t, path)
	entered, release := stuck(layer, path)
	defer release()
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error)
	go func() {
		_, err := l.Begin(ctx, anIntent())
		result <- err
	}()
	<-entered
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) || !errors.Is(err, auditlog.ErrUnavailable) {
		t.Fatalf("Begin: %v", err)
	}
	// One that is still queued is not written at all.
	queued, cancelQueued := context.WithCancel(context.Background())
	go func() {
		_, err := l.Begin(queued, anIntent())
		result <- err
	}()
	eventually(t, "the second intent is queued", func() bool { return l.Status().Queued == 1 })
	cancelQueued()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatalf("Begin: %v", err)
	}
	release()
	eventually(t, "the intent is closed", func() bool { s := l.Status(); return s.OpenIntents == 0 && s.Records == 4 })
	call(t, l)
	closeLog(t, l)
	list := check(t, path)
	want := "genesis start intent outcome intent outcome stop checkpoint"
	if got := strings.Join(kinds(t, path), " "); got != want {
		t.Errorf("kinds %s, want %s", got, want)
	}
	if list[3].body["outcome"] != "cancelled" || list[3].body["reason"] == nil {
		t.Errorf("outcome %v", list[3].body)
	}
}

func TestAnOutcomeIsWrittenThoughNobodyWaits(t *testing.T) {
	path := quickPath(t)
	layer := newFaulty(nil)
	l := setup{fs: layer}.open(t, path)
	op, err := l.Begin(context.Background(), anIntent())
	if err != nil {
		t.Fatal(err)
	}
	entered, release := stuck(layer, path)
	defer release()
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error)
	go func() { result <- op.End(ctx, anOutcome()) }()
	<-entered
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatalf("End: %v", err)
	}
	release()
	closeLog(t, l)
	if open := openIntents(check(t, path)); len(open) > 0 {
		t.Errorf("intents %v have no outcome", open)
	}
}

func TestTheQueueIsBounded(t *testing.T) {
	path := quickPath(t)
	layer := newFaulty(nil)
	l := setup{fs: layer, change: func(c *auditlog.Config) { c.QueueBytes = 4000 }}.open(t, path)
	entered, release := stuck(layer, path)
	defer release()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			op, err := l.Begin(context.Background(), anIntent())
			if err == nil {
				err = op.End(context.Background(), anOutcome())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	<-entered
	eventually(t, "the queue fills", func() bool { return l.Status().QueuedBytes > 3000 })
	if s := l.Status(); s.QueuedBytes > 4000 {
		t.Errorf("%d bytes are queued", s.QueuedBytes)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := l.Begin(ctx, anIntent()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Begin on a full queue: %v", err)
	}
	release()
	wg.Wait()
	closeLog(t, l)
	if open := openIntents(check(t, path)); len(open) > 0 {
		t.Errorf("intents %v have no outcome", open)
	}
}

func TestCloseEndsWhatIsOpen(t *testing.T) {
	path := quickPath(t)
	l := setup{}.open(t, path)
	var ops []*auditlog.Operation
	for range 50 {
		op, err := l.Begin(context.Background(), anIntent())
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, op)
	}
	// Half of them end by themselves at the same moment.
	var wg sync.WaitGroup
	for _, op := range ops[:25] {
		wg.Go(func() { _ = op.End(context.Background(), anOutcome()) })
	}
	closeLog(t, l)
	wg.Wait()
	for _, op := range ops {
		if err := op.End(context.Background(), anOutcome()); err != nil {
			t.Errorf("End after Close: %v", err)
		}
	}
	if _, err := l.Begin(context.Background(), anIntent()); !errors.Is(err, auditlog.ErrUnavailable) || !errors.Is(err, auditlog.ErrClosed) {
		t.Errorf("Begin after Close: %v", err)
	}
	if _, err := l.Event(context.Background(), anEvent()); !errors.Is(err, auditlog.ErrClosed) {
		t.Errorf("Event after Close: %v", err)
	}
	if _, err := l.Checkpoint(context.Background()); !errors.Is(err, auditlog.ErrClosed) {
		t.Errorf("Checkpoint after Close: %v", err)
	}
	list := check(t, path)
	if open := openIntents(list); len(open) > 0 {
		t.Errorf("intents %v have no outcome", open)
	}
	shutdown := 0
	for _, r := range list {
		if r.body["outcome"] == "internal_error" && r.body["reason"] == "shutdown" {
			shutdown++
		}
	}
	if shutdown < 25 {
		t.Errorf("%d operations were ended by Close", shutdown)
	}
	if got := kinds(t, path); strings.Join(got[len(got)-2:], " ") != "stop checkpoint" {
		t.Errorf("the log ends in %v", got[len(got)-2:])
	}
}

func TestCheckpointsComeByNumberAndByTime(t *testing.T) {
	path := quickPath(t)
	l := setup{change: func(c *auditlog.Config) { c.CheckpointEvery = 10 }}.open(t, path)
	for range 50 {
		call(t, l)
	}
	note, err := l.Checkpoint(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	again, err := l.Checkpoint(context.Background())
	if err != nil || string(again) != string(note) {
		t.Errorf("a checkpoint with nothing new: %v\n%s", err, again)
	}
	if got := read(t, path+".checkpoint"); string(got) != string(note) {
		t.Errorf("checkpoint file:\n%s\nwant:\n%s", got, note)
	}
	if s := l.Status(); s.Checkpointed != s.Records-1 || s.Durable != s.Records {
		t.Errorf("watermarks %+v", s)
	}
	closeLog(t, l)
	if n := count(check(t, path), "checkpoint"); n != 12 {
		t.Errorf("%d checkpoints", n)
	}

	path = quickPath(t)
	l = setup{change: func(c *auditlog.Config) { c.CheckpointAfter = 20 * time.Millisecond }}.open(t, path)
	call(t, l)
	eventually(t, "a checkpoint by time", func() bool { s := l.Status(); return s.Checkpointed == s.Records-1 })
	seen := l.Status().Records
	time.Sleep(60 * time.Millisecond)
	if now := l.Status().Records; now != seen {
		t.Errorf("an idle log grew from %d to %d records", seen, now)
	}
	closeLog(t, l)
	check(t, path)
}

func TestConfigurationChangesAreRecorded(t *testing.T) {
	path := quickPath(t)
	l := setup{change: func(c *auditlog.Config) { c.ConfigSHA256 = auditlog.Hash{1} }}.open(t, path)
	if err := l.Config(context.Background(), auditlog.Hash{1}, auditlog.Hash{2}, "reload"); err != nil {
		t.Fatal(err)
	}
	l.SetOptions(auditlog.Durable, 0, -1)
	call(t, l)
	if s := l.Status(); s.Durable != s.Records {
		t.Errorf("durable is not in force: %+v", s)
	}
	closeLog(t, l)
	list := check(t, path)
	one, two := auditlog.Hash{1}.String(), auditlog.Hash{2}.String()
	if list[0].body["config_sha256"] != one || list[1].body["config_sha256"] != one ||
		list[2].body["config_sha256"] != two || list[2].body["prev_config_sha256"] != one || list[2].body["actor"] != "reload" {
		t.Errorf("config record %v", list[2].body)
	}
}

func TestTwoLogsOfOneProcessShareAFile(t *testing.T) {
	path := quickPath(t)
	a, b := setup{}.open(t, path), setup{}.open(t, path)
	var wg sync.WaitGroup
	for _, l := range []*auditlog.Log{a, b} {
		for range 4 {
			wg.Go(func() {
				for range 50 {
					call(t, l)
				}
			})
		}
	}
	wg.Wait()
	closeLog(t, a)
	call(t, b)
	closeLog(t, b)
	list := check(t, path)
	if n := count(list, "intent"); n != 401 || len(openIntents(list)) > 0 {
		t.Errorf("%d intents, open %v", n, openIntents(list))
	}
	runs := map[string]int{}
	for _, r := range list {
		if r.kind == "intent" {
			runs[fmt.Sprint(r.body["run"])]++
		}
	}
	if len(runs) != 2 {
		t.Errorf("runs %v", runs)
	}
}

func TestUnencodableTextsNeverBreakARecord(t *testing.T) {
	path := quickPath(t)
	l := setup{}.open(t, path)
	in := anIntent()
	in.Method, in.Reason, in.RequestID, in.RequestIDType = "a\x00\"\\\xff", "\xed\xa0\x80", "\"seal\":{", "string"
	in.Anomaly = []string{`,"seal":{"version":3`}
	in.Params = auditlog.Payload{Received: []byte(`{"seal":{"version":3,"seq":1},"open":{}}`)}
	op, err := l.Begin(context.Background(), in)
	if err != nil {
		t.Fatal(err)
	}
	if err := op.End(context.Background(), anOutcome()); err != nil {
		t.Fatal(err)
	}
	closeLog(t, l)
	check(t, path)
}
