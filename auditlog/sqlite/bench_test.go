//go:build cgo && unix

package sqlite

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// batches cuts a log's lines into batches of n and returns them with their
// positions.
func batches(b *testing.B, data []byte, n int) (list [][]byte) {
	b.Helper()
	var batch []byte
	count := 0
	for line := range bytes.Lines(data) {
		batch = append(batch, line...)
		if count++; count%n == 0 {
			list, batch = append(list, batch), nil
		}
	}
	return list
}

// A row is one record of about 1 KB.
func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{1, 16, 128, 1024} {
		for _, mode := range []Synchronous{Full, Normal} {
			b.Run(fmt.Sprintf("%d/%s", n, mode), func(b *testing.B) {
				list := batches(b, manyLines(b, max(b.N, 1)*n), n)
				store, err := New(dbPath(b), Options{Synchronous: mode})
				if err != nil {
					b.Fatal(err)
				}
				defer store.Close()
				if err := store.Open(strings.Repeat("r", 22)); err != nil {
					b.Fatal(err)
				}
				if err := store.Create(); err != nil {
					b.Fatal(err)
				}
				pos := int64(0)
				used := cpuTime(b)
				b.ResetTimer()
				for _, batch := range list {
					if _, err := store.Stat(); err != nil {
						b.Fatal(err)
					}
					if err := store.Append(batch, pos); err != nil {
						b.Fatal(err)
					}
					pos += int64(len(batch))
				}
				b.ReportMetric(float64(len(list)*n)/b.Elapsed().Seconds(), "rows/s")
				b.ReportMetric(float64((cpuTime(b)-used).Microseconds())/float64(len(list)*n), "cpu-µs/row")
			})
		}
	}
}

// cpuTime is what the process has used of the processors.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// manyLines makes n record lines of about 1 KB that continue each other.
func manyLines(b *testing.B, n int) []byte {
	b.Helper()
	var out []byte
	for seq := range n {
		body := fmt.Appendf(nil, `{"audit_operation_id":"019e5f21-975c-70a1-a2a3-%012d","client_id":"desktop","id":"01KSFJ34C00410610%09d","kind":"intent","method":"tools/call","params":{"text":"%s"},"timestamp":"2026-05-25T12:34:57.%09dZ","tool_name":"read_file"}`,
			seq, seq, strings.Repeat("x", 500), seq)
		s := auditlog.Seal{Seq: uint64(seq), Leaf: auditlog.LeafHash(body), KeyID: "k1"}
		out = auditlog.AppendLine(out, body, &s, nil)
	}
	return out
}

func BenchmarkVerify(b *testing.B) {
	path := dbPath(b)
	l := openLog(b, path, Options{})
	for range 5000 {
		call(b, l)
	}
	closeLog(b, l)
	size := len(lines(b, path))
	b.SetBytes(int64(size))
	b.ResetTimer()
	for b.Loop() {
		r, err := OpenReader(path)
		if err != nil {
			b.Fatal(err)
		}
		report, err := auditlog.Verify(context.Background(), []auditlog.Source{r.Source()}, auditlog.VerifyOptions{Secret: []byte(testSecret)})
		if err != nil || report.Exit != 0 {
			b.Fatal(err, report.Findings)
		}
		if err := r.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(10002*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}
