package token

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// WellKnown is where the metadata of a protected resource stands: inserted
// before the path of the resource (RFC 9728, section 3.1).
const WellKnown = "/.well-known/oauth-protected-resource"

// Resource is a protected resource.
type Resource struct {
	Origin string // scheme and host
	Path   string // escaped; of the root it is empty or /
}

// ParseResource reads the address of a resource.
func ParseResource(address string) (Resource, error) {
	if err := CheckURL(address); err != nil {
		return Resource{}, err
	}
	u, err := url.Parse(address)
	if err != nil {
		return Resource{}, err
	}
	if u.RawQuery != "" || u.ForceQuery {
		return Resource{}, fmt.Errorf("%q has a query; name the address without it", address)
	}
	return Resource{Origin: u.Scheme + "://" + u.Host, Path: u.EscapedPath()}, nil
}

// Address is the resource's own.
func (r Resource) Address() string { return r.Origin + r.Path }

// MetadataPath is the path of the resource's metadata.
func (r Resource) MetadataPath() string {
	if r.Path == "/" {
		return WellKnown
	}
	return WellKnown + r.Path
}

// Metadata describes how the resource is protected.
type Metadata struct {
	Resource             string
	AuthorizationServers []string
	ScopesSupported      []string
}

// JSON is the metadata as RFC 9728 has it.
func (m *Metadata) JSON() []byte {
	var out strings.Builder
	e := jsontext.NewEncoder(&out)
	write := func(t jsontext.Token) { _ = e.WriteToken(t) } // to memory, of texts that are UTF-8
	text := func(s string) { write(jsontext.String(strings.ToValidUTF8(s, ""))) }
	write(jsontext.BeginObject)
	text("resource")
	text(m.Resource)
	for _, list := range []struct {
		name   string
		values []string
	}{
		{"authorization_servers", m.AuthorizationServers},
		{"scopes_supported", m.ScopesSupported},
		{"bearer_methods_supported", []string{"header"}},
	} {
		if len(list.values) == 0 {
			continue
		}
		text(list.name)
		write(jsontext.BeginArray)
		for _, v := range list.values {
			text(v)
		}
		write(jsontext.EndArray)
	}
	write(jsontext.EndObject)
	return []byte(out.String())
}

// Challenge is the value of WWW-Authenticate for a refused request (RFC 6750,
// section 3, and RFC 9728, section 5.1).
func Challenge(reason Reason, resource Resource, scopes []string) string {
	var out strings.Builder
	out.WriteString("Bearer")
	separator := " "
	add := func(name, value string) {
		if value == "" {
			return
		}
		out.WriteString(separator + name + `="`)
		for _, c := range []byte(value) {
			if c == '"' || c == '\\' {
				out.WriteByte('\\')
			}
			out.WriteByte(c)
		}
		out.WriteByte('"')
		separator = ", "
	}
	if resource.Origin != "" {
		add("resource_metadata", resource.Origin+resource.MetadataPath())
	}
	add("scope", strings.Join(scopes, " "))
	add("error", reason.code())
	if out.Len() == len("Bearer") {
		add("realm", "mcp-audit")
	}
	return out.String()
}

// code is the error that a challenge names. A request without credentials gets
// none (RFC 6750, section 3.1).
func (r Reason) code() string {
	switch r {
	case Missing, Throttled, NoKeys, notRefused:
		return ""
	case Repeated:
		return "invalid_request"
	case ScopeMissing:
		return "insufficient_scope"
	}
	return "invalid_token"
}

// Status is the HTTP status of a request that is refused for this reason.
func (r Reason) Status() int {
	switch r {
	case Repeated:
		return http.StatusBadRequest
	case ScopeMissing:
		return http.StatusForbidden
	case Throttled:
		return http.StatusTooManyRequests
	case NoKeys:
		return http.StatusServiceUnavailable
	}
	return http.StatusUnauthorized
}
