package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Manifest is the content of xcaddy.json: what to build and with which
// versions. Every member is required unless it says otherwise.
type Manifest struct {
	// XcaddyVersion is the release of xcaddy that builds, for example v0.4.5.
	XcaddyVersion string `json:"xcaddy_version"`

	// CaddyVersion is the release of Caddy to build, for example v2.11.9. It is
	// the one that go.mod names, or development and release builds would differ.
	CaddyVersion string `json:"caddy_version"`

	// Module is the import path of the module in the manifest's folder.
	Module string `json:"module"`

	// With lists further modules, each as xcaddy's --with takes it. Optional.
	With []string `json:"with,omitempty"`

	// Tags are Go build tags. Optional.
	Tags []string `json:"tags,omitempty"`

	// CGO builds with cgo. Optional, false by default.
	CGO bool `json:"cgo,omitempty"`
}

var releaseTag = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)

// ReadManifest reads and checks a manifest. An unknown member is an error: a
// misspelled one would silently build something else.
func ReadManifest(path string) (*Manifest, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the build manifest: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var m Manifest
	if err := decoder.Decode(&m); err != nil {
		return nil, fmt.Errorf("build manifest %s: %w", path, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("build manifest %s: there is more after the object; remove it", path)
	}
	for _, v := range []struct{ member, value string }{
		{"xcaddy_version", m.XcaddyVersion},
		{"caddy_version", m.CaddyVersion},
	} {
		if !releaseTag.MatchString(v.value) {
			return nil, fmt.Errorf("build manifest %s: %s is %q; name a release, for example v1.2.3", path, v.member, v.value)
		}
	}
	if m.Module == "" {
		return nil, fmt.Errorf("build manifest %s: module is missing; name the module's import path", path)
	}
	return &m, nil
}

// Args returns the arguments of the go command that runs the pinned xcaddy on
// the module in folder root and writes the program to output.
func (m *Manifest) Args(root, output string) ([]string, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	if output, err = filepath.Abs(output); err != nil {
		return nil, err
	}
	args := []string{
		"run", "github.com/caddyserver/xcaddy/cmd/xcaddy@" + m.XcaddyVersion,
		"build", m.CaddyVersion,
		// With a version, xcaddy does not ask the module proxy for the newest
		// one, which a proxy that does not serve this module refuses. The
		// replacement makes the number meaningless.
		"--with", m.Module + "@v0.0.0=" + root,
	}
	for _, with := range m.With {
		args = append(args, "--with", with)
	}
	return append(args, "--output", output), nil
}

// Env returns base with the variables that xcaddy reads. ldflags are added to
// those that strip the program.
func (m *Manifest) Env(base []string, ldflags string) []string {
	cgo := "0"
	if m.CGO {
		cgo = "1"
	}
	// XCADDY_GO_BUILD_FLAGS replaces xcaddy's own flags, so they are all here.
	flags := []string{"-trimpath"}
	if len(m.Tags) > 0 {
		flags = append(flags, "-tags", strings.Join(m.Tags, ","))
	}
	link := strings.TrimSpace("-s -w " + ldflags)
	flags = append(flags, "-ldflags", "'"+link+"'")
	return append(base, "CGO_ENABLED="+cgo, "XCADDY_GO_BUILD_FLAGS="+strings.Join(flags, " "))
}
