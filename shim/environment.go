package shim

import (
	"fmt"
	"path"
	"runtime"
	"strings"
)

// secretVariables are the product's own secrets, which are no business of the
// server.
var secretVariables = []string{"MCP_AUDIT_SIGNING_SECRET", "AUDIT_SECRET", "MCP_AUDIT_STATIC_BEARER_TOKEN"}

// patterns is a flag that may be repeated: names of variables, in which "*"
// stands for any characters and "?" for one.
type patterns []string

// String implements flag.Value.
func (p *patterns) String() string { return strings.Join(*p, ",") }

// Set implements flag.Value. Several patterns may be separated by commas.
func (p *patterns) Set(value string) error {
	for one := range strings.SplitSeq(value, ",") {
		if one = strings.TrimSpace(one); one == "" || strings.ContainsAny(one, `=[]\`) {
			return fmt.Errorf("%q is no name of a variable; use letters, with * for any characters", one)
		}
		*p = append(*p, one)
	}
	return nil
}

func (p patterns) match(name string) bool {
	for _, pattern := range p {
		if runtime.GOOS == "windows" {
			pattern, name = strings.ToUpper(pattern), strings.ToUpper(name)
		}
		// Set lets no pattern through that Match could not read. A "/" in a
		// name is a character like others.
		if ok, _ := path.Match(strings.ReplaceAll(pattern, "/", ":"), strings.ReplaceAll(name, "/", ":")); ok {
			return true
		}
	}
	return false
}

// ChildEnv is the environment of the child: the client's, or of that only what
// allow names, less what deny names and the product's secrets.
func ChildEnv(environ []string, allow, deny patterns) []string {
	secrets := patterns(secretVariables)
	out := make([]string, 0, len(environ))
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if secrets.match(name) || deny.match(name) || len(allow) > 0 && !allow.match(name) {
			continue
		}
		out = append(out, entry)
	}
	return out
}
