// Package mcpaudit is the import that `xcaddy build --with
// github.com/caddy-mcp-audit/mcp-audit` needs: it registers every Caddy module
// of this project and contains nothing else.
package mcpaudit

import _ "github.com/caddy-mcp-audit/mcp-audit/caddymodule"
