//go:build cgo

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/pflag"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// receiver takes rows and fails as it is told.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	rows   []map[string]any
	fail   func(n int) int // status of the n-th request; 0: take it
	n      int
	header http.Header
}

func newReceiver(t *testing.T, fail func(n int) int) *receiver {
	t.Helper()
	r := &receiver{fail: fail}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.n++
		r.header = req.Header.Clone()
		if r.fail != nil {
			if status := r.fail(r.n); status != 0 {
				w.WriteHeader(status)
				return
			}
		}
		if req.Header.Get("Content-Type") == "application/json" {
			var list []map[string]any
			if err := json.Unmarshal(body, &list); err != nil {
				t.Errorf("%v: %s", err, body)
			}
			r.rows = append(r.rows, list...)
			return
		}
		for line := range strings.Lines(string(body)) {
			var row map[string]any
			if err := json.Unmarshal([]byte(line), &row); err != nil {
				t.Errorf("%v: %s", err, line)
			}
			r.rows = append(r.rows, row)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// seqs are the numbers of the rows that arrived.
func (r *receiver) seqs() (list []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, row := range r.rows {
		if seq, ok := row["seq"].(float64); ok {
			list = append(list, int(seq))
		} else {
			list = append(list, int(row["metadata"].(map[string]any)["sequence"].(float64)))
		}
	}
	return list
}

// closedSeqs are the numbers of a log's outcomes and events.
func closedSeqs(t *testing.T, path string) (list []int) {
	t.Helper()
	for _, row := range exported(t, path) {
		list = append(list, int(row["seq"].(float64)))
	}
	return list
}

func TestShipGoesOnBehindItsCursorWithoutGapOrRepetition(t *testing.T) {
	for _, format := range []string{"ocsf", "jsonl", "jsonl --list"} {
		t.Run(format, func(t *testing.T) {
			clean(t)
			path := filepath.Join(t.TempDir(), logName)
			cursor := filepath.Join(t.TempDir(), "siem.cursor")
			r := newReceiver(t, nil)
			ship := func() {
				t.Helper()
				args := append([]string{"ship", "--to", r.URL + "/ingest?token=hush", "--cursor", cursor, "--once", "--format"}, strings.Fields(format)...)
				_, stderr, code := command(t, append(args, path)...)
				if code != 0 || !strings.Contains(stderr, "rows were delivered") || strings.Contains(stderr, "hush") {
					t.Fatalf("exit %d: %s", code, stderr)
				}
			}
			log := openLog(t, path)
			for i := range 700 {
				call(t, log, fmt.Sprintf("tool_%d", i), auditlog.Success, "")
			}
			ship()
			ship()
			for range 5 {
				call(t, log, "more", auditlog.Success, "")
			}
			ship()
			closeLog(t, log)
			want := closedSeqs(t, path)
			if got := r.seqs(); !slices.Equal(got, want) || len(got) != 705 {
				t.Errorf("%d rows arrived of %d", len(got), len(want))
			}
			if info, err := os.Stat(cursor); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the cursor file: %v, %v", info, err)
			}
		})
	}
}

func TestShipRepeatsWhatWasNotAcknowledged(t *testing.T) {
	clean(t)
	path := filepath.Join(t.TempDir(), logName)
	log := openLog(t, path)
	for range 20 {
		call(t, log, "read", auditlog.Success, "")
	}
	closeLog(t, log)
	r := newReceiver(t, func(n int) int {
		if n == 1 {
			return http.StatusServiceUnavailable
		}
		return 0
	})
	_, stderr, code := command(t, "ship", "--to", r.URL, "--cursor", filepath.Join(t.TempDir(), "c"), "--once", path)
	if code != 0 || !strings.Contains(stderr, "503") || !strings.Contains(stderr, "trying again") {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	if got := r.seqs(); !slices.Equal(got, closedSeqs(t, path)) {
		t.Errorf("%v", got)
	}
}

func TestShipStopsWhereItIsRefused(t *testing.T) {
	clean(t)
	path := filepath.Join(t.TempDir(), logName)
	log := openLog(t, path)
	call(t, log, "read", auditlog.Success, "")
	closeLog(t, log)
	r := newReceiver(t, func(int) int { return http.StatusUnauthorized })
	cursor := filepath.Join(t.TempDir(), "c")
	_, stderr, code := command(t, "ship", "--to", r.URL, "--cursor", cursor, path)
	if code == 0 || !strings.Contains(stderr, "401") || !strings.Contains(stderr, "refuses") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if _, err := os.Stat(cursor); err == nil {
		t.Error("there is a cursor, and nothing was acknowledged")
	}
}

func TestShipTellsWhatIsMissing(t *testing.T) {
	clean(t)
	dir := t.TempDir()
	path := filepath.Join(dir, logName)
	cursor := filepath.Join(t.TempDir(), "c")
	r := newReceiver(t, nil)
	ship := func(more ...string) (string, int) {
		t.Helper()
		_, stderr, code := command(t, append([]string{"ship", "--to", r.URL, "--cursor", cursor, "--once", path}, more...)...)
		return stderr, code
	}
	log := openLog(t, path)
	call(t, log, "read", auditlog.Success, "")
	closeLog(t, log)
	if stderr, code := ship(); code != 0 {
		t.Fatal(stderr)
	}
	// Another log takes the place of this one.
	for _, name := range []string{logName, logName + ".state", logName + ".checkpoint"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	log = openLog(t, path)
	call(t, log, "read", auditlog.Success, "")
	call(t, log, "read", auditlog.Success, "")
	closeLog(t, log)
	stderr, code := ship()
	if code == 0 || !strings.Contains(stderr, "--skip-missing") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if stderr, code = ship("--skip-missing"); code != 0 || len(r.seqs()) != 3 {
		t.Errorf("exit %d, %d rows: %s", code, len(r.seqs()), stderr)
	}
}

func TestShipTellsTheLogHowFarItCame(t *testing.T) {
	clean(t)
	path := filepath.Join(t.TempDir(), logName)
	log := openLog(t, path)
	call(t, log, "read", auditlog.Success, "")
	r := newReceiver(t, nil)
	_, stderr, code := command(t, "ship", "--to", r.URL+"/in", "--cursor", filepath.Join(t.TempDir(), "c"), "--once", "--record-every", "1h", path)
	if code != 0 {
		t.Fatal(stderr)
	}
	closeLog(t, log)
	rows := exported(t, "--all", path)
	found := slices.ContainsFunc(rows, func(row map[string]any) bool {
		return row["kind"] == "access" && row["action"] == "ship" && strings.Contains(fmt.Sprint(row["target"]), "1 rows from record 3 to 3") &&
			strings.Contains(fmt.Sprint(row["target"]), strings.TrimPrefix(r.URL, "http://")+"/in")
	})
	if !found {
		t.Errorf("%v", rows)
	}
	verified(t, path)
}

func TestShipSendsOpenTelemetryWithItsHeaders(t *testing.T) {
	clean(t)
	path := filepath.Join(t.TempDir(), logName)
	log := openLog(t, path)
	call(t, log, "read", auditlog.Denied, "not you")
	closeLog(t, log)
	header := filepath.Join(t.TempDir(), "header")
	if err := os.WriteFile(header, []byte("Authorization: Bearer very-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var got logs.LogsData
	var token string
	partial := []byte{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		token = req.Header.Get("Authorization")
		if err := proto.Unmarshal(body, &got); err != nil {
			t.Error(err)
		}
		_, _ = w.Write(partial)
	}))
	defer server.Close()
	to := "otlp+" + server.URL + "/v1/logs"
	_, stderr, code := command(t, "ship", "--to", to, "--cursor", filepath.Join(t.TempDir(), "c"), "--once", "--header-file", header, path)
	if code != 0 || strings.Contains(stderr, "very-secret") {
		t.Fatal(stderr)
	}
	records := got.ResourceLogs[0].ScopeLogs[0].LogRecords
	attributes := map[string]string{}
	for _, a := range records[0].Attributes {
		attributes[a.Key] = a.Value.GetStringValue() + strconv.FormatInt(a.Value.GetIntValue(), 10)
	}
	if token != "Bearer very-secret" || len(records) != 1 || attributes["mcp_audit.seq"] != "3" || records[0].SeverityNumber != logs.SeverityNumber_SEVERITY_NUMBER_WARN {
		t.Errorf("%q %v %v", token, attributes, records[0].SeverityNumber)
	}
	partial = []byte{0x0a, 0x06, 0x08, 0x01, 0x12, 0x02, 'n', 'o'} // one rejected: no
	_, stderr, code = command(t, "ship", "--to", to, "--cursor", filepath.Join(t.TempDir(), "c"), "--once", path)
	if code == 0 || !strings.Contains(stderr, "rejects 1 of them: no") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

func TestShipMistakesAreExplained(t *testing.T) {
	clean(t)
	path := vector(t)
	cursor := filepath.Join(t.TempDir(), "c")
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("Bearer very-secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--cursor " + cursor:                                                       "--to",
		"--to http://127.0.0.1:1":                                                  "--cursor",
		"--to siem:514 --cursor " + cursor:                                         "receiver",
		"--to http://siem.example --cursor " + cursor:                              "use TLS",
		"--to otlp+http://siem.example --cursor " + cursor:                         "use TLS",
		"--to ftp://127.0.0.1 --cursor " + cursor:                                  "no way to deliver",
		"--to http://127.0.0.1:1 --format cef --cursor " + cursor:                  "no format",
		"--to http://127.0.0.1:1 --header-file " + bad + " --cursor " + cursor:     "is not made of lines",
		"--to syslog+tls://127.0.0.1 --cert x --cursor " + cursor:                  "both",
		"--to syslog+tls://127.0.0.1 --ca " + bad + " --cursor " + cursor:          "no certificate",
		"--to http://127.0.0.1:1 --once --cursor " + bad:                           "no cursor",
		"--to syslog+tls://127.0.0.1 --header-file " + bad + " --cursor " + cursor: "no headers",
	} {
		_, stderr, code := command(t, append(append([]string{"ship"}, strings.Fields(args)...), path)...)
		if code == 0 || !strings.Contains(stderr, want) || strings.Contains(stderr, "very-secret") {
			t.Errorf("%s: exit %d: %s", args, code, stderr)
		}
	}
}

func TestThePageOnDeliveryHasEveryFlag(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "shipping.md"))
	if err != nil {
		t.Fatal(err)
	}
	shipCommand().Flags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && !strings.Contains(string(page), "`--"+f.Name) {
			t.Errorf("docs/shipping.md lacks --%s", f.Name)
		}
	})
}
