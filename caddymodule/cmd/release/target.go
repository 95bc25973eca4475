package main

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
)

// A target is an operating system and an architecture, by Go's names.
type target struct{ os, arch string }

var supported = []target{
	{"linux", "amd64"}, {"linux", "arm64"},
	{"darwin", "amd64"}, {"darwin", "arm64"},
	{"windows", "amd64"},
}

func parseTarget(name string) (target, error) {
	system, arch, _ := strings.Cut(name, "/")
	t := target{system, arch}
	if !slices.Contains(supported, t) {
		return t, fmt.Errorf("-targets has %q; known are %v", name, supported)
	}
	return t, nil
}

func (t target) String() string { return t.os + "/" + t.arch }

// cgo is the value of CGO_ENABLED: 1 for linux/amd64 built on such a machine,
// since a C compiler for other targets is rarely there.
func (t target) cgo() string {
	if t == (target{"linux", "amd64"}) && runtime.GOOS == t.os && runtime.GOARCH == t.arch {
		return "1"
	}
	return "0"
}

func (t target) suffix() string {
	if t.os == "windows" {
		return ".exe"
	}
	return ""
}

func (t target) extension() string {
	if t.os == "windows" {
		return ".zip"
	}
	return ".tar.gz"
}
