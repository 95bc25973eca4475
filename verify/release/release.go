// Package release says which release a program is of.
package release

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Set at build time with -ldflags -X.
var (
	version   string
	commit    string
	buildTime string
)

// Version is the product's version: the one set at build time, else that of
// the module, else "devel".
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		if v := moduleVersion(info); v != "" && v != "(devel)" {
			return v
		}
	}
	return "devel"
}

const modulePath = "github.com/caddy-mcp-audit/mcp-audit"

// moduleVersion finds the product's module, which is the main one in its own
// programs and a dependency in a Caddy built with xcaddy.
func moduleVersion(info *debug.BuildInfo) string {
	if info.Main.Path == modulePath {
		return info.Main.Version
	}
	for _, dep := range info.Deps {
		if dep.Path == modulePath {
			return dep.Version
		}
	}
	return ""
}

// Text is what --version of a program prints: its name, version, commit
// and build time.
func Text(program string) string {
	hash, at := commit, buildTime
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision" && hash == "":
				hash = s.Value
			case s.Key == "vcs.time" && at == "":
				at = s.Value
			}
		}
	}
	if hash == "" {
		hash = "unknown"
	}
	if at == "" {
		at = "unknown"
	}
	return fmt.Sprintf("%s %s, commit %s, built %s, %s", program, Version(), hash, at, runtime.Version())
}
