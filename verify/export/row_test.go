package export

import "testing"

func TestRowsWithoutAMethodSayWhatTheyAreAbout(t *testing.T) {
	for reason, want := range map[string]string{
		"token_missing": "unauthenticated request", "throttled": "unauthenticated request", "scope_missing": "unauthenticated request",
		"launch": "server launch", "stderr": "server stderr", "http GET": "http GET", "trailing": "unreadable message", "": "unreadable message",
	} {
		if got := Nameless(reason); got != want {
			t.Errorf("%q: %q, want %q", reason, got, want)
		}
	}
}
