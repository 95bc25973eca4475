package auditlog

// Members calls each for the members of the record's body, in their order,
// until it returns false. The value points into the line. A member that is
// committed to is given as its commitment, never in its disclosed form.
func (r *Record) Members(each func(name string, value []byte) bool) {
	bodyMembers(r.Line.Prefix, each)
}
