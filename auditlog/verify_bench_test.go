//go:build unix

package auditlog

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// verifyBenchLog makes a log of about size bytes whose lines are about lineBytes
// long: intents and outcomes, a checkpoint every 1000 records.
func verifyBenchLog(b testing.TB, size, lineBytes int) (data []byte, records uint64) {
	l := newTestLog(b, "audit.example/bench")
	l.genesis()
	var tree Range
	fill := strings.Repeat(`{"name":"quoted \"text\"","n":12},`, max(lineBytes-640, 0)/34) + "0"
	payload := json.RawMessage(`{"arguments":{"list":[` + fill + `]},"name":"read_file"}`)
	for n := 0; len(data) < size; n++ {
		common := body{"audit_operation_id": operationID(n), "client_id": "desktop", "direction": "client→server", "method": "tools/call",
			"request_id": "7", "request_id_type": "number", "server_id": "files", "tool_name": "read_file", "transport": "http"}
		common["params"] = payload
		l.now = l.now.Add(1e6)
		intent := l.addBody(jcs(l.base("intent", common)), "")
		delete(common, "params")
		common["result"], common["intent_seq"], common["outcome"] = payload, intent, "success"
		l.addBody(jcs(l.base("outcome", common)), "")
		for ; tree.Size < l.seq; tree.Append(l.leaves[tree.Size]) {
		}
		if tree.Size%1000 < 2 {
			signed, err := SignTreeHead(TreeHead{l.origin, tree.Size, tree.Root()}, l.private)
			if err != nil {
				b.Fatal(err)
			}
			l.add("checkpoint", body{"note": string(signed)})
		}
		for _, line := range l.files[0] {
			data = append(append(data, line...), '\n')
		}
		l.files[0] = l.files[0][:0]
	}
	return data, l.seq
}

// BenchmarkVerify measures the whole verification on one goroutine beside the
// core (leaf, chain, MAC, tree) and the bare SHA-256 of the same bytes, all in
// one run, so that the ratios mean something on any machine.
func BenchmarkVerify(b *testing.B) {
	for _, lineBytes := range []int{1 << 10, 8 << 10} {
		data, records := verifyBenchLog(b, 32<<20, lineBytes)
		// The process's CPU time, which a busy machine does not distort.
		var before time.Duration
		begin := func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			before = cpuTime(b)
		}
		end := func(b *testing.B) {
			ns := float64((cpuTime(b) - before).Nanoseconds()) / float64(b.N)
			b.ReportMetric(ns/float64(records), "cpu-ns/record")
			b.ReportMetric(float64(len(data))/ns, "GB/cpu-s")
		}
		name := fmt.Sprintf("%dB/", len(data)/int(records))
		b.Run(name+"sha256", func(b *testing.B) {
			begin(b)
			for b.Loop() {
				for rest := data; len(rest) > 0; {
					n := min(len(rest), len(data)/int(records))
					sha256.Sum256(rest[:n])
					rest = rest[n:]
				}
			}
			end(b)
		})
		b.Run(name+"core", func(b *testing.B) {
			begin(b)
			for b.Loop() {
				benchCore(b, data, false)
			}
			end(b)
		})
		b.Run(name+"scan", func(b *testing.B) {
			begin(b)
			for b.Loop() {
				benchCore(b, data, true)
			}
			end(b)
		})
		for _, jobs := range []int{1, runtime.GOMAXPROCS(0)} {
			b.Run(fmt.Sprintf("%scommand-jobs%d", name, jobs), func(b *testing.B) {
				begin(b)
				for b.Loop() {
					r := verifyTest(b, []Source{memorySource("bench", data)}, VerifyOptions{Secret: []byte(testSecret), Jobs: jobs})
					if r.Exit != 0 || r.Records != records {
						b.Fatal(r.Records, kindsFound(r))
					}
				}
				end(b)
			})
		}
	}
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchCore does the per-line work of a worker, and the tree.
func benchCore(b *testing.B, data []byte, members bool) {
	opts := VerifyOptions{Secret: []byte(testSecret)}
	w := newLineWorker(&scanConfig{maxLine: MaxLine, crypto: true, keys: newMACKeys(&opts)})
	buf := make([]byte, 1+chunkBytes)
	lines := make([]scanned, 0, chunkLines)
	var tree Range
	for len(data) > 0 {
		n := copy(buf[1:], data)
		for buf[n] != '\n' {
			n--
		}
		data = data[n:]
		c := &chunk{buf: buf, n: n + 1, origin: "audit.example/bench/i0", lines: lines[:0]}
		if members {
			w.chunk(c)
		} else {
			w.coreChunk(c)
		}
		for i := range c.lines {
			s := &c.lines[i]
			if !s.leafOK || !s.macOK {
				b.Fatal("the bench log is not valid")
			}
			tree.Append(s.seal.Leaf)
		}
	}
}

// coreChunk is chunk without the body's members: seal, leaf, chain and MAC.
func (w *lineWorker) coreChunk(c *chunk) {
	for at := 1; at < c.n; {
		end := at + bytes.IndexByte(c.buf[at:c.n], '\n')
		c.lines = append(c.lines, scanned{start: at, end: end})
		s := &c.lines[len(c.lines)-1]
		line := c.buf[at:end]
		splitFast(line, s, &w.kids)
		w.seal(c, s, line)
		if len(c.lines) > 1 {
			w.link(&c.lines[len(c.lines)-2], s)
		}
		at = end + 1
	}
}
