package caddymodule

import (
	"context"
	"maps"
	"slices"
)

// addPolicy notes the digest of a policy whose decisions go into the log.
func (s *logSettings) addPolicy(serverID, digest string) {
	if s.policies == nil {
		s.policies = make(map[string][]string)
	}
	if !slices.Contains(s.policies[serverID], digest) {
		s.policies[serverID] = append(s.policies[serverID], digest)
	}
}

// recordPoliciesLocked records which policies a reload changed, added or took
// away. Routes are told apart by the name of their server; where several share
// one, those that changed are taken in their order.
func (s *sharedLog) recordPoliciesLocked(ctx context.Context, settings *logSettings) error {
	before, after := s.settings.policies, settings.policies
	servers := maps.Clone(before)
	if servers == nil {
		servers = make(map[string][]string)
	}
	maps.Copy(servers, after)
	for _, server := range slices.Sorted(maps.Keys(servers)) {
		gone, added := without(before[server], after[server]), without(after[server], before[server])
		for i := range max(len(gone), len(added)) {
			from, to := "", ""
			if i < len(gone) {
				from = gone[i]
			}
			if i < len(added) {
				to = added[i]
			}
			if err := s.log.PolicyChange(ctx, server, from, to, "reload"); err != nil {
				return err
			}
		}
	}
	return nil
}

func without(list, others []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(d string) bool { return slices.Contains(others, d) })
}
