package tests

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

// smallDisk returns a folder on a file system of 1 MiB.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(harness.TempDir(t), "disk")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "mcp-audit-test", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("mounting a small tmpfs, which only root may: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return dir
}

// fill leaves no free byte on the disk.
func fill(t *testing.T, disk string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(disk, "ballast"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 16; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func free(t *testing.T, disk string) {
	t.Helper()
	if err := os.Remove(filepath.Join(disk, "ballast")); err != nil {
		t.Fatal(err)
	}
}

// LOG-2, block: what cannot be recorded is not done.
func TestFullDiskRefusesCallsAndRecoversWithSpace(t *testing.T) {
	u := upstream.Start(t)
	disk := smallDisk(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Log: filepath.Join(disk, "audit", "audit.jsonl")})
	caddy.Post(t, call("1", "echo", `{"m":"first"}`))

	// The last page of the file and the reserve take some records yet.
	const id = "9007199254740993"
	refused := 0
	for i := range 2000 {
		fill(t, disk)
		marker := fmt.Sprintf("full-%d-", i)
		answer := caddy.Post(t, call(id, "echo", fmt.Sprintf(`{"m":%q}`, marker+strings.Repeat("x", 2000))))
		if strings.Contains(answer.Body, `"result"`) {
			if refused > 0 {
				t.Fatalf("call %d passed while the disk was full", i)
			}
			continue
		}
		wantRPCError(t, answer, id, -32028)
		if u.Received(marker) {
			t.Errorf("call %d was refused, yet it reached the server", i)
		}
		if refused++; refused == 5 {
			break
		}
	}
	if refused < 5 {
		t.Fatal("the disk is full, and calls still pass")
	}
	body, header := modernCall(`"m-1"`, "echo", `{"m":"modern-full"}`)
	wantRPCError(t, caddy.Post(t, body, header...), `"m-1"`, -31028)
	if u.Received("modern-full") {
		t.Error("the modern call reached the server")
	}
	if status, body := caddy.AdminGet(t, "/mcp_audit/status"); status != http.StatusServiceUnavailable {
		t.Errorf("the readiness probe answers %d: %s", status, body)
	}
	if _, metrics := caddy.AdminGet(t, "/metrics"); !strings.Contains(metrics, `mcp_audit_sink_up{log="default"} 0`) {
		t.Error("the gauge mcp_audit_sink_up is not 0")
	}

	free(t, disk)
	if answer := caddy.Post(t, call("2", "echo", `{"m":"space again"}`)); !strings.Contains(answer.Body, "space again") {
		t.Errorf("the first call after space returned: %+v", answer)
	}
	if status, body := caddy.AdminGet(t, "/mcp_audit/status"); status != http.StatusOK {
		t.Errorf("the readiness probe answers %d after space returned: %s", status, body)
	}
	if _, metrics := caddy.AdminGet(t, "/metrics"); !strings.Contains(metrics, `mcp_audit_sink_up{log="default"} 1`) {
		t.Error("the gauge mcp_audit_sink_up is not 1")
	}
	caddy.Stop(t)
	records := caddy.Records(t)
	harness.CheckChain(t, records)
	operations := harness.Operations(t, records)
	if len(operations) != u.Count() {
		t.Errorf("the log has %d operations, the server received %d requests", len(operations), u.Count())
	}
	if len(harness.Select(records, func(r harness.Record) bool { return r.Kind == "disk_full" })) == 0 {
		t.Error("no record says that the disk was full")
	}
	harness.VerifyClean(t, caddy.Log)
}

// LOG-2, allow: calls pass unrecorded, and their number is recorded.
func TestFullDiskUnderAllowForwardsAndRecordsHowMany(t *testing.T) {
	u := upstream.Start(t)
	disk := smallDisk(t)
	caddy := harness.StartCaddy(t, harness.Site{
		Upstream:   u.Address,
		Log:        filepath.Join(disk, "audit", "audit.jsonl"),
		LogOptions: "on_failure allow",
	})
	const calls = 60
	for i := range calls {
		fill(t, disk)
		marker := fmt.Sprintf("call-%d-", i)
		answer := caddy.Post(t, call("1", "echo", fmt.Sprintf(`{"m":%q}`, marker+strings.Repeat("x", 20000))))
		if !strings.Contains(answer.Body, `"result"`) {
			t.Fatalf("call %d did not pass: %+v", i, answer)
		}
	}
	free(t, disk)
	caddy.Post(t, call("2", "echo", `{"m":"space again"}`))
	caddy.Stop(t)

	records := caddy.Records(t)
	harness.CheckChain(t, records)
	recorded := len(harness.Operations(t, records))
	missed := 0
	for _, r := range records {
		if r.Kind == "gap" {
			missed += r.Count
		}
	}
	if recorded+missed != calls+1 {
		t.Errorf("%d calls were recorded and %d counted as missed, of %d", recorded, missed, calls+1)
	}
	if missed == 0 {
		t.Error("the disk was full, and nothing was missed")
	}
	report := harness.VerifyLog(t, caddy.Log)
	if report.Exit != 0 || !report.Has("gap") {
		t.Errorf("verify: %s", report)
	}
}

// The records of a log are whole lines even after writes that failed half way.
func TestFullDiskLeavesNoHalfLine(t *testing.T) {
	u := upstream.Start(t)
	disk := smallDisk(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Log: filepath.Join(disk, "audit", "audit.jsonl")})
	for i := range 40 {
		if i%4 == 3 {
			fill(t, disk)
		}
		caddy.Post(t, call("1", "echo", fmt.Sprintf(`{"m":%q}`, strings.Repeat("x", 1+i*1500))))
		if i%4 == 3 {
			free(t, disk)
		}
	}
	caddy.Stop(t)
	data, err := os.ReadFile(caddy.Log)
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.SplitAfter(string(data), "\n") {
		if line != "" && (!json.Valid([]byte(line)) || !strings.HasSuffix(line, "}\n")) {
			t.Errorf("line %d is not one record: %.200s", i+1, line)
		}
	}
	harness.VerifyClean(t, caddy.Log)
}
