package redact

import (
	"bytes"
	"encoding/base64"
	"strings"
	"unicode/utf8"
)

// prefixed is a token that its issuer begins with a known text.
type prefixed struct {
	prefix   string
	kind     kind
	name     string
	min, max int                    // characters behind the prefix
	in       func(b byte) bool      // characters of the token
	check    func(rest []byte) bool // of what follows the prefix; nil: any
}

func alnum(b byte) bool { return isLetter(b) || isDigit(b) }

func upperAlnum(b byte) bool { return b >= 'A' && b <= 'Z' || isDigit(b) }

func alnumDash(b byte) bool { return alnum(b) || b == '-' || b == '_' }

func alnumDot(b byte) bool { return alnumDash(b) || b == '.' }

func lowerHex(b byte) bool { return isDigit(b) || b >= 'a' && b <= 'f' }

// mixed reports whether a token looks random: it has a digit and a letter.
func mixed(rest []byte) bool {
	digits, letters := false, false
	for _, b := range rest {
		digits = digits || isDigit(b)
		letters = letters || isLetter(b)
	}
	return digits && letters
}

// prefixedTokens are the tokens of issuers that mark them, with the lengths that
// they document.
var prefixedTokens = []prefixed{
	{"AKIA", awsKey, "aws_key", 16, 16, upperAlnum, nil},
	{"ASIA", awsKey, "aws_key", 16, 16, upperAlnum, nil},
	{"ghp_", vendorToken, "github_token", 36, 255, alnum, nil},
	{"gho_", vendorToken, "github_token", 36, 255, alnum, nil},
	{"ghu_", vendorToken, "github_token", 36, 255, alnum, nil},
	{"ghs_", vendorToken, "github_token", 36, 255, alnum, nil},
	{"ghr_", vendorToken, "github_token", 36, 255, alnum, nil},
	{"github_pat_", vendorToken, "github_token", 22, 255, alnumDash, mixed},
	{"glpat-", vendorToken, "gitlab_token", 20, 255, alnumDot, nil},
	{"glrt-", vendorToken, "gitlab_token", 20, 255, alnumDot, nil},
	{"gldt-", vendorToken, "gitlab_token", 20, 255, alnumDot, nil},
	{"glptt-", vendorToken, "gitlab_token", 20, 255, alnumDot, nil},
	{"xoxb-", vendorToken, "slack_token", 20, 255, alnumDash, mixed},
	{"xoxp-", vendorToken, "slack_token", 20, 255, alnumDash, mixed},
	{"xoxa-", vendorToken, "slack_token", 20, 255, alnumDash, mixed},
	{"xoxr-", vendorToken, "slack_token", 20, 255, alnumDash, mixed},
	{"xoxs-", vendorToken, "slack_token", 20, 255, alnumDash, mixed},
	{"xapp-", vendorToken, "slack_token", 20, 255, alnumDash, mixed},
	{"AIza", vendorToken, "google_key", 35, 35, alnumDash, nil},
	{"ya29.", vendorToken, "google_token", 20, 2048, alnumDash, mixed},
	{"GOCSPX-", vendorToken, "google_secret", 20, 64, alnumDash, nil},
	{"sk_live_", vendorToken, "stripe_key", 16, 255, alnum, nil},
	{"rk_live_", vendorToken, "stripe_key", 16, 255, alnum, nil},
	{"sk_test_", vendorToken, "stripe_key", 16, 255, alnum, mixed},
	{"whsec_", vendorToken, "stripe_key", 24, 255, alnum, mixed},
	{"npm_", vendorToken, "npm_token", 36, 36, alnum, nil},
	{"pypi-", vendorToken, "pypi_token", 50, 512, alnumDash, mixed},
	{"sk-ant-", vendorToken, "anthropic_key", 20, 255, alnumDash, mixed},
	{"sk-proj-", vendorToken, "openai_key", 20, 255, alnumDash, mixed},
	{"sk-svcacct-", vendorToken, "openai_key", 20, 255, alnumDash, mixed},
	{"sk-", vendorToken, "openai_key", 32, 255, alnum, mixed},
	{"hf_", vendorToken, "huggingface_token", 30, 64, alnum, nil},
	{"SG.", vendorToken, "sendgrid_key", 40, 128, alnumDot, mixed},
	{"dop_v1_", vendorToken, "digitalocean_token", 64, 64, lowerHex, nil},
	{"shpat_", vendorToken, "shopify_token", 32, 32, lowerHexAny, nil},
	{"shpss_", vendorToken, "shopify_token", 32, 32, lowerHexAny, nil},
	{"dckr_pat_", vendorToken, "docker_token", 20, 64, alnumDash, nil},
	{"glsa_", vendorToken, "grafana_token", 32, 128, alnumDash, mixed},
	{"lin_api_", vendorToken, "linear_key", 32, 64, alnum, nil},
	{"ATATT3", vendorToken, "atlassian_token", 50, 512, alnumDashEq, mixed},
	{"hvs.", vendorToken, "vault_token", 24, 255, alnumDash, mixed},
	{"sq0atp-", vendorToken, "square_token", 22, 64, alnumDash, nil},
	{"sq0csp-", vendorToken, "square_token", 43, 64, alnumDash, nil},
	{"AGE-SECRET-KEY-1", vendorToken, "age_key", 58, 58, upperAlnum, nil},
	{"tskey-", vendorToken, "tailscale_key", 20, 128, alnumDash, mixed},
	{"PMAK-", vendorToken, "postman_key", 50, 64, alnumDash, mixed},
	{"EAAC", vendorToken, "facebook_token", 80, 512, alnum, mixed},
	{"eyJ", jwt, "jwt", 17, 16384, alnumDot, isJWT},
	{"Bearer ", bearer, "bearer", 16, 16384, bearerByte, mixed},
	{"bearer ", bearer, "bearer", 16, 16384, bearerByte, mixed},
	{"BEARER ", bearer, "bearer", 16, 16384, bearerByte, mixed},
	{"Basic ", basicAuth, "basic_auth", 4, 4096, base64Byte, isBasicAuth},
	{"basic ", basicAuth, "basic_auth", 4, 4096, base64Byte, isBasicAuth},
}

func lowerHexAny(b byte) bool { return lowerHex(b) || b >= 'A' && b <= 'F' }

func alnumDashEq(b byte) bool { return alnumDash(b) || b == '=' }

func bearerByte(b byte) bool { return alnumDot(b) || b == '~' || b == '+' || b == '/' || b == '=' }

func base64Byte(b byte) bool {
	return alnum(b) || b == '+' || b == '/' || b == '=' || b == '-' || b == '_'
}

// prefixHeads tells by its first two characters whether a word may begin with a
// prefix: a bit for each second one.
var prefixHeads = func() (t [256][8]uint32) {
	for _, p := range prefixedTokens {
		t[p.prefix[0]][p.prefix[1]>>5] |= 1 << (p.prefix[1] & 31)
	}
	return t
}()

// byFirst are the tokens by the first character of their prefix.
var byFirst = func() (t [256][]*prefixed) {
	for i := range prefixedTokens {
		p := &prefixedTokens[i]
		t[p.prefix[0]] = append(t[p.prefix[0]], p)
	}
	return t
}()

// atPrefix finds the token that begins at i.
func atPrefix(text []byte, i int, set kind) (none span, ok bool) {
	for _, p := range byFirst[text[i]] {
		if p.kind&set == 0 || !hasPrefix(text[i:], p.prefix) {
			continue
		}
		from := i + len(p.prefix)
		end := from
		for limit := min(len(text), from+p.max+1); end < limit && p.in(text[end]); end++ {
		}
		n := end - from
		none.cost += n
		if n > p.max {
			// Longer than any: what it is then, nobody can say.
			for end < len(text) && p.in(text[end]) {
				end++
			}
			none.cost += end - from
			if p.kind != jwt && p.kind != bearer {
				continue
			}
			n = end - from
		}
		for n > p.min && (text[end-1] == '.' || text[end-1] == '-') {
			// The end of a sentence.
			end, n = end-1, n-1
		}
		if n < p.min || isPlaceholder(text[from:end]) || p.check != nil && !p.check(text[from:end]) {
			continue
		}
		start := i
		if p.kind == bearer || p.kind == basicAuth {
			start = from // the scheme stays
		}
		return span{start, end, p.name, none.cost}, true
	}
	return none, false
}

func hasPrefix(text []byte, prefix string) bool {
	return len(text) >= len(prefix) && string(text[:len(prefix)]) == prefix
}

// isJWT checks that what follows eyJ makes a header that is JSON with an
// algorithm or a type, and that a payload follows.
func isJWT(rest []byte) bool {
	head, after, found := bytes.Cut(rest, []byte{'.'})
	if !found || len(after) == 0 || len(head) > 4096 {
		return false
	}
	header, err := base64.RawURLEncoding.DecodeString("eyJ" + string(head))
	return err == nil && (bytes.Contains(header, []byte(`"alg"`)) || bytes.Contains(header, []byte(`"typ"`)) || bytes.Contains(header, []byte(`"enc"`)))
}

// isBasicAuth checks that the text is a name and a password.
func isBasicAuth(rest []byte) bool {
	raw, ok := decodeBase64(string(rest))
	return ok && bytes.IndexByte(raw, ':') > 0 && utf8.Valid(raw) && printable(raw)
}

func printable(raw []byte) bool {
	for _, b := range raw {
		if b < ' ' && b != '\t' && b != '\n' && b != '\r' {
			return false
		}
	}
	return true
}

// isPlaceholder reports whether a text stands for a secret in an example:
// YOUR_API_KEY_HERE, xxxxxxxx, ${TOKEN}, <token>.
func isPlaceholder(text []byte) bool {
	if len(text) == 0 {
		return true
	}
	same := true
	for _, b := range text {
		same = same && b == text[0]
	}
	if same {
		return true
	}
	switch text[0] {
	case '$', '<', '{', '%', '[':
		return true
	}
	lower := strings.ToLower(string(text[:min(len(text), 64)]))
	for _, word := range []string{"your", "example_", "changeme", "change_me", "placeholder", "insert", "redacted", "xxxx", "****"} {
		if strings.Contains(lower, word) {
			return true
		}
	}
	return false
}

// longestPEM bounds how far the end of a private key is looked for.
const longestPEM = 32 << 10

// atPEM finds a private key that begins at i. One without an end goes with all
// that looks like a part of it.
func atPEM(text []byte, i int) (span, bool) {
	const begin = "-----BEGIN "
	if !hasPrefix(text[i:], begin) || i > 0 && text[i-1] == '-' {
		return span{}, false
	}
	head := text[i+len(begin) : min(len(text), i+len(begin)+64)]
	label, _, found := bytes.Cut(head, []byte("-----"))
	if !found || !bytes.HasSuffix(label, []byte("PRIVATE KEY")) && !bytes.HasSuffix(label, []byte("PRIVATE KEY BLOCK")) {
		return span{}, false
	}
	window := text[i:min(len(text), i+longestPEM)]
	if end := bytes.Index(window, append([]byte("-----END "), append(bytes.Clone(label), "-----"...)...)); end >= 0 {
		return span{i, i + end + len("-----END -----") + len(label), "private_key", end}, true
	}
	end := i + len(begin) + len(label) + len("-----")
	for end < len(text) && (base64Byte(text[end]) || isSpace(text[end]) || text[end] == '\\') {
		end++
	}
	return span{i, end, "private_key", len(window)}, true
}

// longestAddress bounds the part of a text that is taken for one URL.
const longestAddress = 8 << 10

// atURL finds a password or a parameter with a secret in the URL whose :// is at
// i. It is the first one; the search goes on behind it.
func (p *Profile) atURL(text []byte, i int) (s span, ok bool) {
	start := i
	for start > 0 && i-start < 32 && (alnum(text[start-1]) || text[start-1] == '+' || text[start-1] == '.' || text[start-1] == '-') {
		start--
	}
	end := i
	for limit := min(len(text), i+longestAddress); end < limit && text[end] > ' ' && text[end] != '"' && text[end] != '<' && text[end] != '>' && text[end] != '`'; end++ {
	}
	p.secretParts(string(text[start:end]), func(from, to int) {
		if !ok && to > from && !isPlaceholder(text[start+from:start+to]) {
			s, ok = span{start: start + from, end: start + to, kind: "url"}, true
		}
	})
	s.cost = 4 * (end - start)
	return s, ok
}

// The bounds of an assignment in a text.
const (
	longestAssigned = 4096
	longestLeft     = 64
)

// atAssignment finds the value of password=…, "api_key": "…" or Token: … in a
// text that is no JSON, by the key patterns. After a colon only what looks like
// a credential counts, because prose has colons too.
func (p *Profile) atAssignment(text []byte, i int) (span, bool) {
	left := i
	for left > 0 && (text[left-1] == ' ' || text[left-1] == '"' || text[left-1] == '\'') && i-left < 3 {
		left--
	}
	start := left
	for start > 0 && left-start < longestLeft && (alnumDash(text[start-1]) || text[start-1] == '.') {
		start--
	}
	if start == left || p.judge(text[start:left]) == passes {
		return span{}, false
	}
	from := i + 1
	for from < len(text) && from-i < 4 && (text[from] == ' ' || text[from] == '"' || text[from] == '\'' || text[from] == '=' || text[from] == '>') {
		from++
	}
	// A scheme before the credential stays.
	for _, scheme := range []string{"Bearer ", "bearer ", "Basic ", "basic ", "token "} {
		if hasPrefix(text[from:], scheme) {
			from += len(scheme)
		}
	}
	end := from
	for limit := min(len(text), from+longestAssigned); end < limit && !endsAssigned(text[end]); end++ {
	}
	value := text[from:end]
	switch {
	case len(value) < 4 || isPlaceholder(value):
		return span{cost: len(value)}, false
	case text[i] == ':' && (len(value) < 8 || !mixed(value) && !strings.ContainsAny(string(value), "!#$%^*+/~")):
		return span{cost: len(value)}, false
	}
	return span{from, end, "assignment", len(value)}, true
}

func endsAssigned(b byte) bool {
	return b <= ' ' || b == '"' || b == '\'' || b == ',' || b == ';' || b == '&' || b == ')' || b == '}' || b == ']' || b == '<' || b == '`'
}
