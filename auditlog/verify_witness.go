package auditlog

// witnessPolicy is the policy that accepts one log's key and knows witnesses,
// without demanding any.
func witnessPolicy(vkey string, witnesses []*Cosigner) (*TrustPolicy, error) {
	p, err := PolicyOf(vkey)
	if err != nil {
		return nil, err
	}
	for _, c := range witnesses {
		p.witnesses = append(p.witnesses, policyWitness{c.name, c})
	}
	return p, nil
}

// parseWitnesses reads the verifier's witness keys. The same one twice counts once.
func parseWitnesses(vkeys []string) (list []*Cosigner, err error) {
	for _, vkey := range vkeys {
		c, err := ParseCosigner(vkey)
		if err != nil {
			return nil, err
		}
		known := false
		for _, other := range list {
			known = known || other.key.Equal(c.key)
		}
		if !known {
			list = append(list, c)
		}
	}
	return list, nil
}

// checkWitnesses checks the cosignatures that an anchor carries of witnesses
// the verifier knows. An anchor from beside the log that one of them cosigned
// counts as external: whoever writes the log cannot make another one.
func (j *judge) checkWitnesses(a *heldAnchor, vkey string) bool {
	if len(j.witnesses) == 0 {
		return true
	}
	policy, err := witnessPolicy(vkey, j.witnesses)
	if err == nil {
		_, a.cosigned, err = policy.OpenCheckpoint(a.note)
	}
	if err != nil {
		j.findAt(place{}, "anchor_sig_invalid", "%s: the log signed it, but a witness's signature on it is not valid: %v", a.name, err)
		return false
	}
	a.external = a.external || len(a.cosigned) > 0
	return true
}
