package mcp

// Members calls f for the members of a JSON object, in order, with decoded
// names and raw values, as lenient parsers read it: for nothing that is no
// object, and up to the first fault of the grammar. A text that passed Scan
// has no faults and no repeated names. Neither argument may be changed.
func Members(object []byte, f func(name, value []byte)) { eachMember(object, f) }

// Elements is Members for the elements of a JSON array.
func Elements(array []byte, f func(value []byte)) { eachElement(array, f) }

// TextElements is the texts in the array that a member of an object holds.
func TextElements(object []byte, member string) (texts []string) {
	eachMember(object, func(name, value []byte) {
		if string(name) != member {
			return
		}
		eachElement(value, func(element []byte) { texts = append(texts, Text(element)) })
	})
	return texts
}
