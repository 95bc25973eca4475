package caddymodule

import "context"

// Shutdown ends every operation that is still open and seals every log of the
// process, at the latest when ctx ends. A program that embeds Caddy calls it
// before caddy.Stop, which by itself is no exit: an operation that waits for
// an answer on another stream would keep its log open. Nothing can be recorded
// afterwards.
func Shutdown(ctx context.Context) { shutdownAll(ctx) }
