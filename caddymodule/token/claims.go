package token

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// checkClaims reads the payload of a token whose signature is right.
func (v *Verifier) checkClaims(payload []byte, now time.Time) (*Claims, Reason) {
	members, ok := object(payload)
	if !ok {
		return nil, BadClaims
	}
	var issuer string
	if !readText(members["iss"], &issuer) || issuer != v.Issuer {
		return nil, BadIssuer
	}
	if audiences, ok := texts(members["aud"]); !ok || !slices.ContainsFunc(audiences, v.isAudience) {
		return nil, BadAudience
	}
	if refused := v.checkTimes(members, now); refused != notRefused {
		return nil, refused
	}
	if _, bound := members["cnf"]; bound {
		return nil, Bound
	}
	return v.readClaims(members)
}

func (v *Verifier) isAudience(text string) bool { return slices.Contains(v.Audiences, text) }

// checkTimes judges by whole milliseconds: a token is valid from its nbf on,
// and no longer at its exp, each moved by the skew (RFC 7519, section 4.1).
func (v *Verifier) checkTimes(members map[string]jsontext.Value, now time.Time) Reason {
	expires, ok := instant(members["exp"])
	if !ok {
		return BadClaims
	}
	if !now.Before(expires.Add(v.Skew)) {
		return Expired
	}
	for _, name := range []string{"nbf", "iat"} {
		value, has := members[name]
		if !has {
			continue
		}
		from, ok := instant(value)
		if !ok {
			return BadClaims
		}
		if now.Before(from.Add(-v.Skew)) {
			return NotYetValid
		}
	}
	return notRefused
}

// instant reads a NumericDate.
func instant(value jsontext.Value) (time.Time, bool) {
	if value.Kind() != '0' {
		return time.Time{}, false
	}
	seconds, err := strconv.ParseFloat(string(value), 64)
	if err != nil || seconds < 0 || seconds > latestSeconds {
		return time.Time{}, false
	}
	return time.UnixMilli(int64(seconds * 1000)), true
}

func (v *Verifier) readClaims(members map[string]jsontext.Value) (*Claims, Reason) {
	c := &Claims{Issuer: v.Issuer}
	for _, name := range []struct {
		names []string
		into  *string
	}{{v.Claims.Subject, &c.Subject}, {v.Claims.ClientID, &c.ClientID}} {
		value := find(members, name.names)
		if value != nil && (!readText(value, name.into) || !fit(*name.into)) {
			return nil, BadClaims
		}
	}
	if c.Subject == "" {
		return nil, BadClaims
	}
	var ok bool
	if c.Roles, ok = names(find(members, v.Claims.Roles), func(text string) []string { return []string{text} }); !ok {
		return nil, BadClaims
	}
	if c.Scopes, ok = names(find(members, v.Claims.Scopes), strings.Fields); !ok {
		return nil, BadClaims
	}
	return c, notRefused
}

// find is the first claim of the names that is there and not null.
func find(members map[string]jsontext.Value, names []string) jsontext.Value {
	for _, name := range names {
		if value, has := members[name]; has && value.Kind() != 'n' {
			return value
		}
		inner := members
		parts := strings.Split(name, ".")
		for i, part := range parts {
			value, has := inner[part]
			if !has || value.Kind() == 'n' {
				break
			}
			if i == len(parts)-1 {
				return value
			}
			var ok bool
			if inner, ok = object(value); !ok {
				break
			}
		}
	}
	return nil
}

// names reads a list of names, which may be one text.
func names(value jsontext.Value, split func(string) []string) ([]string, bool) {
	if value == nil {
		return nil, true
	}
	var found []string
	if value.Kind() == '"' {
		var text string
		if !readText(value, &text) {
			return nil, false
		}
		if text != "" {
			found = split(text)
		}
	} else {
		var ok bool
		if found, ok = texts(value); !ok {
			return nil, false
		}
	}
	return found, len(found) <= mostListed && !slices.ContainsFunc(found, func(text string) bool { return text == "" || !fit(text) })
}

// texts reads a text or a list of texts.
func texts(value jsontext.Value) ([]string, bool) {
	var one string
	if readText(value, &one) {
		return []string{one}, true
	}
	var many []string
	if value.Kind() != '[' || json.Unmarshal(value, &many) != nil {
		return nil, false
	}
	return many, true
}

// fit reports whether a text may stand in records, headers and rules.
func fit(text string) bool {
	return len(text) <= longestClaim && !strings.ContainsFunc(text, unicode.IsControl)
}
