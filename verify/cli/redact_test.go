package cli

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

// redactSample runs the command on a sample.
func redactSample(t *testing.T, sample string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	root := New()
	root.SetArgs(append([]string{"redact"}, args...))
	root.SetIn(strings.NewReader(sample))
	root.SetOut(&out)
	root.SetErr(&errs)
	err := root.Execute()
	complain(root, err)
	return out.String(), errs.String(), ExitCode(err)
}

func TestRedactShowsWhatWouldGoAndNeverTheValue(t *testing.T) {
	clean(t)
	out, errs, code := redactSample(t, `{"password":"hunter2","text":"k=AKIAIOSFODNN7EXAMPLE","n":1e3}`)
	if code != 0 || out != `{"password":"[REDACTED]","text":"k=[REDACTED:aws_key]","n":1e3}`+"\n" {
		t.Errorf("%d %s", code, out)
	}
	if !strings.Contains(errs, "bytes 12 to 21: [REDACTED]\n") || !strings.Contains(errs, "2 values go") || strings.Contains(errs, "hunter2") || strings.Contains(errs, "AKIA") {
		t.Errorf("%s", errs)
	}
}

func TestRedactTakesTheProfileOfAHandler(t *testing.T) {
	clean(t)
	file := filepath.Join(t.TempDir(), "caddy.json")
	write(t, file, []byte(`{"apps":{"http":{"servers":{"s":{"routes":[{"handle":[
		{"handler":"mcp_audit","server_id":"a","redact":{"detect":["none"],"paths":["$.params.pin"],"tag":true}},
		{"handler":"mcp_audit","server_id":"b","redact":{"off":true}}]}]}}}}}`))
	sample := `{"pin":1,"t":"AKIAIOSFODNN7EXAMPLE"}`
	if out, _, code := redactSample(t, sample, "--profile", file, "--server", "a", "--member", "params"); code != 0 || out != `{"pin":"[REDACTED]","t":"AKIAIOSFODNN7EXAMPLE"}`+"\n" {
		t.Errorf("%d %s", code, out)
	}
	if out, _, code := redactSample(t, sample, "--profile", file, "--server", "b"); code != 0 || out != sample+"\n" {
		t.Errorf("%d %s", code, out)
	}
	if _, errs, code := redactSample(t, sample, "--profile", file); code != 2 || !strings.Contains(errs, "choose one with --server") {
		t.Errorf("%d %s", code, errs)
	}
	alone := filepath.Join(t.TempDir(), "profile.json")
	write(t, alone, []byte(`{"keys":["+pin"]}`))
	if out, _, code := redactSample(t, sample, "--profile", alone); code != 0 || !strings.Contains(out, `"pin":"[REDACTED]"`) {
		t.Errorf("%d %s", code, out)
	}
}

func TestRedactNamesMistakes(t *testing.T) {
	clean(t)
	for profile, want := range map[string]string{
		`{"detct":["pii"]}`:             `there is no option "detct"`,
		`{"detect":["secrts"]}`:         "did you mean secrets",
		`{"keys":["a"],"keys":["b"]}`:   "no strict JSON",
		`{"patterns":[{"name":"x"}]}`:   "matches the empty text",
		`{"off":true,"detect":["pii"]}`: "no effect",
	} {
		file := filepath.Join(t.TempDir(), "profile.json")
		write(t, file, []byte(profile))
		if _, errs, code := redactSample(t, `{}`, "--profile", file); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%s: %d %s", profile, code, errs)
		}
	}
	if _, errs, code := redactSample(t, `{"password":`); code != 1 || !strings.Contains(errs, "breaks the JSON grammar") {
		t.Errorf("%d %s", code, errs)
	}
}
