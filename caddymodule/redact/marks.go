package redact

// marks says in what surroundings a value stands. It is inherited by what the
// value contains.
type marks uint8

const (
	// inObject: the value is an object (of an open container only).
	inObject marks = 1 << iota
	// inSchema: it is, or is part of, a JSON Schema.
	inSchema
	// inData: it is data of a user or a tool, where names mean what their
	// author wants, not what the protocol says.
	inData
	// inAddress: it is an address if it is a string.
	inAddress
	// inPairName: it is the name of another member's value if it is a string.
	inPairName
)

// exempt reports whether key patterns do not apply at all: in the schemas of
// the protocol, where names are those of parameters.
func (m marks) exempt() bool { return m&(inSchema|inData) == inSchema }

// enter returns the marks of the value of a member with this decoded name, and
// whether the name itself is exempt from key patterns because the protocol
// defines it.
//
// The arguments of a call, structured results and JSON in strings are data:
// there a member that is merely called progressToken or inputSchema does not
// exempt what a caller puts into it. Schemas that a tool hands out as data are
// still told apart, see schemaKeeps.
func (m marks) enter(name []byte) (marks, bool) {
	switch string(name) {
	case "progressToken", "cursor", "nextCursor":
		return m, m&inData == 0
	case "inputSchema", "outputSchema", "requestedSchema":
		return m | inSchema, m&inData == 0
	case "arguments", "structuredContent":
		if m&inSchema == 0 {
			return m | inData, false
		}
	}
	if isAddress(name) {
		return m | inAddress, m.exempt()
	}
	return m, m.exempt()
}

// handle reports whether the value of a member with this decoded name goes
// whatever the key patterns are: the protocol's own handles, with which whoever
// reads them could ask for a result or go on with another's call, and baggage,
// which carries what applications put into it.
func (m marks) handle(name []byte) bool {
	if m&(inData|inSchema) != 0 {
		return false
	}
	switch string(name) {
	case "taskId", "taskIds", "requestState", "baggage":
		return true
	}
	return false
}

// schemaKeeps reports whether a value that begins with b stays although its
// name matches, because it stands in a schema within data: there an object, an
// array or a boolean describes a parameter of this name, while a text or a
// number would be its value.
func (m marks) schemaKeeps(b byte) bool {
	if m&inSchema == 0 {
		return false
	}
	switch b {
	case '{', '[', 't', 'f':
		return true
	}
	return false
}
