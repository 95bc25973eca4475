package caddymodule_test

import (
	"strings"
	"testing"
)

func TestCommittedPayloadsAreBesideTheRecordAndAReloadChangesWhich(t *testing.T) {
	r := start(t, newUpstream(t, ok), "", "commit payload")
	r.post(echoCall)
	got := r.await(2)
	if params := got[0]["params"]; !strings.Contains(show(got), `"$c"`) || params == nil {
		t.Errorf("records:\n%s", show(got))
	}
	if err := r.load(r.caddyfile("", "commit none")); err != nil {
		t.Fatal(err)
	}
	r.post(echoCall)
	got = r.await(4)
	if last := show(got[len(got)-2:]); strings.Contains(last, `"$c"`) {
		t.Errorf("records after the reload:\n%s", last)
	}
	r.verify()
}

func TestUnknownCommittedMemberFailsTheLoad(t *testing.T) {
	r := start(t, newUpstream(t, ok), "", "")
	err := r.load(r.caddyfile("", "commit paramz"))
	if err == nil || !strings.Contains(err.Error(), `"paramz"`) || !strings.Contains(err.Error(), "payload") {
		t.Errorf("%v", err)
	}
}
