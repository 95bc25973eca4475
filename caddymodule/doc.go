package caddymodule

import (
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	_ "github.com/lestrrat-go/jwx/v2/jwk"
	_ "github.com/mattn/go-sqlite3"
	_ "github.com/oklog/ulid/v2"
	_ "golang.org/x/mod/sumdb/note"
	_ "golang.org/x/mod/sumdb/tlog"
	_ "github.com/andybalholm/brotli"
	_ "github.com/klauspost/compress/zstd"
	_ "github.com/google/uuid"
	_ "github.com/spf13/cobra"
	_ "golang.org/x/sys/unix"
	_ "github.com/cyberphone/json-canonicalization/go/src/webpki.org/jsoncanonicalizer"
	_ "github.com/gowebpki/jcs"
	_ "github.com/go-json-experiment/json/jsontext"
)
