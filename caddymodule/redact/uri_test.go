package redact_test

import "testing"

func TestURITakesSecretsOutOfAddresses(t *testing.T) {
	p := profile(t)
	for _, c := range []struct{ in, want string }{
		{"postgres://user:pw@db.example/x", "postgres://[REDACTED]@db.example/x"},
		{"https://a.example/p?token=abc&x=1#f", "https://a.example/p?token=[REDACTED]&x=1#f"},
		{"https://a.example/?x=1;api%5Fkey=k&y", "https://a.example/?x=1;api%5Fkey=[REDACTED]&y"},
		{"https://a.example/@user?max_tokens=5", "https://a.example/@user?max_tokens=5"},
		{"https://a@b@c.example?password=", "https://[REDACTED]@c.example?password="},
		{"https://a.example/p#access_token=abc&x=1", "https://a.example/p#access_token=[REDACTED]&x=1"},
		{"file:///etc/passwd", "file:///etc/passwd"},
		{"echo", "echo"},
		{"https://[REDACTED]@a.example?token=[REDACTED]", "https://[REDACTED]@a.example?token=[REDACTED]"},
	} {
		if got := p.URI(c.in); got != c.want {
			t.Errorf("%s became %s, want %s", c.in, got, c.want)
		}
	}
}

func TestRedactTakesSecretsOutOfAddressMembers(t *testing.T) {
	p := profile(t)
	for _, c := range []struct{ in, want string }{
		{`{"uri":"https://u:p@a.example/?token=t&x=1"}`, `{"uri":"https://[REDACTED]@a.example/?token=[REDACTED]&x=1"}`},
		{`{"contents":[{"uri":"s3://k:s@b/o"}]}`, `{"contents":[{"uri":"s3://[REDACTED]@b/o"}]}`},
		{`{"url":"https:\/\/u:p@a.example"}`, `{"url":"[REDACTED]"}`},
		{`{"url":"https:\/\/a.example"}`, `{"url":"https:\/\/a.example"}`},
		{`{"uri":["https://u:p@a.example"]}`, `{"uri":["https://[REDACTED:url]@a.example"]}`},
		{`{"arguments":{"json":"{\"url\":\"https://u:p@a\"}"}}`, `{"arguments":{"json":"{\"url\":\"https://[REDACTED]@a\"}"}}`},
	} {
		got := c.in
		if out, changed, err := p.Redact([]byte(c.in)); err != nil {
			t.Fatal(err)
		} else if changed {
			got = string(out)
		}
		if got != c.want {
			t.Errorf("%s became %s, want %s", c.in, got, c.want)
		}
		if _, changed, err := p.Redact([]byte(c.want)); changed || err != nil {
			t.Errorf("a second pass changed %s (%v)", c.want, err)
		}
	}
}

func TestHandlesOfTheProtocolAreRedacted(t *testing.T) {
	p := profile(t)
	for _, c := range []struct{ in, want string }{
		{`{"taskId":"t1"}`, `{"taskId":"[REDACTED]"}`},
		{`{"task":{"taskId":"t1","status":"working"}}`, `{"task":{"taskId":"[REDACTED]","status":"working"}}`},
		{`{"notifications":{"taskIds":["a","b"]}}`, `{"notifications":{"taskIds":"[REDACTED]"}}`},
		{`{"requestState":"s","_meta":{"baggage":"k=v"}}`, `{"requestState":"[REDACTED]","_meta":{"baggage":"[REDACTED]"}}`},
		{`{"arguments":{"taskId":"JIRA-1"}}`, `{"arguments":{"taskId":"JIRA-1"}}`},
		{`{"tools":[{"inputSchema":{"properties":{"taskId":{"type":"string"}}}}]}`, `{"tools":[{"inputSchema":{"properties":{"taskId":{"type":"string"}}}}]}`},
	} {
		got := c.in
		if out, changed, err := p.Redact([]byte(c.in)); err != nil {
			t.Fatal(err)
		} else if changed {
			got = string(out)
		}
		if got != c.want {
			t.Errorf("%s became %s, want %s", c.in, got, c.want)
		}
	}
}
