package tests

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/tests/collector"
	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

// siemCertificate writes a certificate for 127.0.0.1 and its key.
func siemCertificate(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "siem"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: encoded}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// rsyslog is the configuration of a real syslog server that writes what it
// gets to a file. Its queue is direct, so that what it has read is in the file.
const rsyslog = `global(workDirectory="%[1]s" maxMessageSize="64k"
	DefaultNetstreamDriver="gtls" DefaultNetstreamDriverCAFile="%[2]s" DefaultNetstreamDriverCertFile="%[2]s" DefaultNetstreamDriverKeyFile="%[3]s")
main_queue(queue.type="Direct")
module(load="imtcp" StreamDriver.Name="gtls" StreamDriver.Mode="1" StreamDriver.AuthMode="anon")
input(type="imtcp" address="127.0.0.1" port="%[4]s")
template(name="raw" type="string" string="%%rawmsg%%\n")
action(type="omfile" file="%[5]s" template="raw")
`

// shipping is a running `mcp-audit ship`.
func shipping(t *testing.T, caddy *harness.Caddy, to string, more ...string) *harness.Process {
	t.Helper()
	args := append([]string{"ship", "--to", to, "--cursor", filepath.Join(caddy.Dir, "siem.cursor"), "--poll", "20ms"}, more...)
	cmd := harness.CLI(t, caddy.Dir, append(args, caddy.Log)...)
	return harness.Launch(t, cmd)
}

// exportedSeqs are the numbers of what ended in a log.
func exportedSeqs(t *testing.T, caddy *harness.Caddy) (seqs []int) {
	t.Helper()
	stdout, stderr, code := harness.Run(t, harness.CLI(t, caddy.Dir, "export", "--format", "jsonl", "--no-payloads", caddy.Log))
	if code != 0 {
		t.Fatal(stderr)
	}
	pattern := regexp.MustCompile(`"seq":(\d+)`)
	for line := range strings.Lines(stdout) {
		seqs = append(seqs, atoi(t, pattern.FindStringSubmatch(line)[1]))
	}
	return seqs
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// callWhile sends calls until done is closed.
func callWhile(t *testing.T, caddy *harness.Caddy, done <-chan struct{}) (wait func()) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
					caddy.Post(t, call(strconv.Itoa(i), "echo", `{"m":"x"}`))
					time.Sleep(10 * time.Millisecond) // some hundred calls a second
				}
			}
		})
	}
	return wg.Wait
}

// PRF-3 for the exporter: a real syslog server that is killed and stopped under
// load, and a delivery that is killed, lose nothing and change no order.
func TestSyslogGetsEverythingThoughItIsKilledAndStopped(t *testing.T) {
	if _, err := exec.LookPath("rsyslogd"); err != nil {
		t.Fatal("rsyslogd is missing: apt-get install rsyslog rsyslog-gnutls")
	}
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Output: "rotate_size 200KiB"})
	cert, key := siemCertificate(t, caddy.Dir)
	address := harness.FreeAddress(t)
	received := filepath.Join(caddy.Dir, "received")
	config := filepath.Join(caddy.Dir, "rsyslog.conf")
	_, port, _ := net.SplitHostPort(address)
	if err := os.WriteFile(config, fmt.Appendf(nil, rsyslog, caddy.Dir, cert, key, port, received), 0o600); err != nil {
		t.Fatal(err)
	}
	serve := func() *harness.Process {
		t.Helper()
		return harness.StartServer(t, exec.Command("rsyslogd", "-n", "-f", config, "-i", filepath.Join(caddy.Dir, "rsyslog.pid")), address)
	}
	lines := func() int {
		data, _ := os.ReadFile(received)
		return strings.Count(string(data), "\n")
	}
	await := func(more int) {
		t.Helper()
		from := lines()
		harness.Eventually(t, "more messages arrive", func() bool { return lines() >= from+more })
	}
	done := make(chan struct{})
	wait := callWhile(t, caddy, done)
	to, trust := "syslog+tls://"+address, []string{"--ca", cert, "--timeout", "2s"}
	server, ship := serve(), shipping(t, caddy, to, trust...)
	for range 3 {
		await(50)
		server.Kill()
		server = serve()
		await(50)
		ship.Kill()
		ship = shipping(t, caddy, to, trust...)
	}
	await(20)
	// It stands still for longer than a delivery waits.
	server.Signal(t, syscall.SIGSTOP)
	time.Sleep(3 * time.Second)
	server.Signal(t, syscall.SIGCONT)
	await(20)
	close(done)
	wait()
	caddy.Stop(t)
	want := exportedSeqs(t, caddy)
	got := func() (seqs []int) {
		file, err := os.Open(received)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		pattern := regexp.MustCompile(`\[mcpaudit@32473 seq="(\d+)"`)
		for s := bufio.NewScanner(file); s.Scan(); {
			if m := pattern.FindStringSubmatch(s.Text()); m != nil {
				seqs = append(seqs, atoi(t, m[1]))
			}
		}
		return seqs
	}
	harness.Eventually(t, "the last message arrives", func() bool {
		seqs := got()
		return len(seqs) > 0 && seqs[len(seqs)-1] == want[len(want)-1]
	})
	ship.Signal(t, os.Interrupt)
	if code := ship.Exit(t); code != 0 {
		t.Errorf("exit %d: %s", code, ship.Err)
	}
	all := got()
	// A batch that was not acknowledged is there again: the first copy counts.
	var first []int
	seen := make(map[int]bool)
	for _, seq := range all {
		if !seen[seq] {
			seen[seq] = true
			first = append(first, seq)
		}
	}
	if !slices.Equal(first, want) {
		t.Errorf("%d different messages arrived, in order: %v; the log has %d", len(first), slices.IsSorted(first), len(want))
	}
	t.Logf("%d messages, %d of them repetitions of batches that were not acknowledged", len(all), len(all)-len(first))
	folder := filepath.Dir(caddy.Log)
	if report := harness.Verify(t, folder, "--keys", filepath.Join(folder, "keys.json")); report.Exit != 0 {
		t.Errorf("%v", report)
	}
}

// A real OTLP receiver that is restarted gets each row once.
func TestCollectorGetsEachRowOnce(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
	address := harness.FreeAddress(t)
	received, stop := collector.StartLogs(t, address)
	ship := shipping(t, caddy, "otlp+http://"+address+"/v1/logs")
	post := func(n int) {
		t.Helper()
		for i := range n {
			caddy.Post(t, call(strconv.Itoa(i), "echo", `{"m":"x"}`))
		}
	}
	post(30)
	harness.Eventually(t, "the first rows arrive", func() bool { return len(received()) == 30 })
	stop()
	post(30)
	again, _ := collector.StartLogs(t, address)
	harness.Eventually(t, "the others arrive", func() bool { return len(again()) == 30 })
	ship.Signal(t, os.Interrupt)
	if code := ship.Exit(t); code != 0 {
		t.Errorf("exit %d: %s", code, ship.Err)
	}
	var seqs []int
	for _, record := range append(received(), again()...) {
		seq, _ := record.Attributes().Get("mcp_audit.seq")
		seqs = append(seqs, int(seq.Int()))
		if method, _ := record.Attributes().Get("mcp.method.name"); method.AsString() != "tools/call" {
			t.Errorf("method %q", method.AsString())
		}
	}
	if want := exportedSeqs(t, caddy); !slices.Equal(seqs, want) {
		t.Errorf("arrived are %v, want %v", seqs, want)
	}
	caddy.Stop(t)
	harness.VerifyClean(t, caddy.Log)
}
