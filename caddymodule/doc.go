// Package caddymodule is the Caddy side of mcp-audit: the app that owns the
// audit logs, the handler that audits a route, and their Caddyfile grammar.
//
// A request takes one way through the package and nobody else touches it:
// handler.go admits it, mcp.Scan reads it, identity.go says who sent it, the
// policy judges it, exchange.go records the intent and forwards the original
// bytes, responsewriter.go follows the answer as it passes, and answer.go
// writes the outcome.
//
// Before that stands authentication, of whichever provider. Those of this
// package (authoidc.go, authbearer.go) have a guard around them (authguard.go)
// that records who is rejected. What a token is worth is judged in package
// token, which knows nothing of Caddy.
package caddymodule
