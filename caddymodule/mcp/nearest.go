package mcp

// NearestMethod returns the method of the protocol that a mistyped one stands
// for: it differs in at most one place, of up to two bytes. It returns "" for a
// method of the protocol, and for one that is near none, as an extension's.
func NearestMethod(method string) string {
	if _, known := methods[method]; known {
		return ""
	}
	best := ""
	for name := range methods {
		if onePlace(method, name) && (best == "" || name < best) {
			best = name
		}
	}
	return best
}

// onePlace reports whether two texts are the same before and behind one place.
func onePlace(a, b string) bool {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return len(a) <= 2 && len(b) <= 2
}
