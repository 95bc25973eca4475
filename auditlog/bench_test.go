package auditlog

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// benchLog is a log without a store: enough to seal into memory.
func benchLog(tb testing.TB) *Log {
	tb.Helper()
	keys, err := GenerateKeyring("k1", "")
	if err != nil {
		tb.Fatal(err)
	}
	cfg := Config{Store: noStore{}, Keys: keys, Name: "bench"}
	if cfg, err = cfg.withDefaults(); err != nil {
		tb.Fatal(err)
	}
	l := newLog(cfg)
	p := startPosition("bench/i0", "k1", 0)
	if err := l.useKeys(&p); err != nil {
		tb.Fatal(err)
	}
	l.pos = p
	return l
}

// noStore is a store that nothing calls.
type noStore struct{ Store }

func (noStore) Path() string { return "bench" }

// benchIntent has a body of about the given size.
func benchIntent(size int) *Intent {
	value := []byte(`{"name":"read_file","arguments":{"path":"` + strings.Repeat("x", max(size-650, 0)) + `","n":[1,2.5,true]}}`)
	return &Intent{
		Message: Message{
			OperationID: NewOperationID(), Direction: ClientToServer, Transport: "http", ProtocolVersion: "2025-11-25", Method: "tools/call",
			RequestID: "7", RequestIDType: "number", MCPName: "read_file", ToolName: "read_file", ClientID: "desktop", ServerID: "filesystem",
			Principal: &Principal{Subject: "alice"}, Policy: &Policy{Decision: "allow"},
		},
		Params: Payload{Received: value}, Request: value,
	}
}

func TestSealingIsCheap(t *testing.T) {
	l := benchLog(t)
	d, err := l.enc.Load().intent(benchIntent(1024), "", newStamp(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	p := l.pos
	l.commits.buf = make([]byte, 0, 1<<20)
	n := testing.AllocsPerRun(1000, func() {
		d.seal()
		l.commits.buf = l.commits.buf[:0]
		l.sealRecord(&p, &d, false)
	})
	if n > 0 {
		t.Errorf("sealing allocates %v times", n)
	}
	t.Logf("%d bytes of body, %v allocations", len(d.body()), n)
}

// BenchmarkSeal is leaf, chain, MAC, tree and line of one record.
func BenchmarkSeal(b *testing.B) {
	for _, size := range []int{825, 1024, 8192} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			l := benchLog(b)
			d, err := l.enc.Load().intent(benchIntent(size), "", newStamp(time.Now()))
			if err != nil {
				b.Fatal(err)
			}
			p := l.pos
			b.ReportAllocs()
			b.SetBytes(int64(len(d.body())))
			for b.Loop() {
				d.seal()
				l.commits.buf = l.commits.buf[:0]
				l.sealRecord(&p, &d, false)
			}
		})
	}
}

// BenchmarkCommitShare is what one record costs on the committer: all of
// BenchmarkSeal but the leaf, which callers compute.
func BenchmarkCommitShare(b *testing.B) {
	l := benchLog(b)
	d, err := l.enc.Load().intent(benchIntent(1024), "", newStamp(time.Now()))
	if err != nil {
		b.Fatal(err)
	}
	p := l.pos
	b.ReportAllocs()
	for b.Loop() {
		l.commits.buf = l.commits.buf[:0]
		l.sealRecord(&p, &d, false)
	}
}

// BenchmarkBody is what a caller does before it queues a record.
func BenchmarkBody(b *testing.B) {
	for _, size := range []int{1024, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			l := benchLog(b)
			in := benchIntent(size)
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				d, err := l.enc.Load().intent(in, "", newStamp(time.Now()))
				if err != nil {
					b.Fatal(err)
				}
				d.recycle()
			}
		})
	}
}

// openBench opens a log of the given durability. The store comes from a
// function, because the store packages import this one.
func openBench(b *testing.B, durability Durability) *Log {
	b.Helper()
	keys, err := GenerateKeyring("k1", "")
	if err != nil {
		b.Fatal(err)
	}
	l, err := Open(context.Background(), Config{
		Store: NewBenchStore(filepath.Join(b.TempDir(), "audit.jsonl")), Keys: keys, Name: "bench", Durability: durability,
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

// NewBenchStore is set by the external tests.
var NewBenchStore func(path string) Store

// BenchmarkAppend records intents from so many goroutines. rec/s is what
// counts; raw is one write (written) or write and flush (durable) a record, by
// one goroutine in the same run.
func BenchmarkAppend(b *testing.B) {
	for _, durability := range []Durability{Written, Durable} {
		for _, writers := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("%s/%d", durability, writers), func(b *testing.B) {
				l := openBench(b, durability)
				in := benchIntent(1024)
				raw := rawRate(b, durability)
				var next atomic.Int64
				var wg sync.WaitGroup
				b.ReportAllocs()
				b.ResetTimer()
				for range writers {
					wg.Go(func() {
						for next.Add(1) <= int64(b.N) {
							if _, err := l.Event(context.Background(), Event{Message: in.Message, Params: in.Params, Request: in.Request}); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				rate := float64(b.N) / b.Elapsed().Seconds()
				b.ReportMetric(rate, "rec/s")
				b.ReportMetric(rate/raw, "×raw")
			})
		}
	}
}

// rawRate measures writes of 1 KB to a file, flushed one by one for Durable.
func rawRate(b *testing.B, durability Durability) float64 {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), "raw"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	line := bytes.Repeat([]byte("x"), 1250)
	n, start := 0, time.Now()
	for time.Since(start) < 200*time.Millisecond {
		if _, err := f.Write(line); err != nil {
			b.Fatal(err)
		}
		if durability == Durable {
			if err := f.Sync(); err != nil {
				b.Fatal(err)
			}
		}
		n++
	}
	return float64(n) / time.Since(start).Seconds()
}
