package caddymodule

import (
	"errors"
	"fmt"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/legacy"
)

// compatV2 is the one value of LogConfig.Compat.
const compatV2 = "v2"

// copySuffix is what the name of the copy has behind that of the log.
const copySuffix = ".v2.jsonl"

func (s *logSettings) resolveCompat() error {
	switch {
	case s.Compat == "":
	case s.Compat != compatV2:
		return s.fault("compat", fmt.Errorf("unknown value %q; use v2", s.Compat))
	case s.secret == nil:
		return s.fault("compat", errors.New("entries in Integrity v2 form are signed with the secret, and there is none; set the option secret, or MCP_AUDIT_SIGNING_SECRET"))
	}
	return nil
}

func (s *logSettings) resolveCommit() (err error) {
	if s.commit, err = auditlog.ParseCommit(s.Commit); err != nil {
		return s.fault("commit", err)
	}
	return nil
}

// addCopier begins the copy in Integrity v2 form, if there is to be one.
func (s *logSettings) addCopier(cfg *auditlog.Config) error {
	if s.Compat == "" {
		return nil
	}
	copier, err := legacy.NewCopier(legacy.CopierOptions{Path: s.Path + copySuffix, Secret: s.secret, KeyID: s.KeyID, Logger: s.logger})
	if err != nil {
		return s.fault("compat", err)
	}
	cfg.Copier = copier
	return nil
}
