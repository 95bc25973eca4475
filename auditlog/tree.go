package auditlog

import (
	"errors"
	"math/bits"
)

// Range is a compact Merkle range: the roots of the complete subtrees that
// cover the first Size leaves, left to right (RFC 6962; at most 63 of them).
// The zero value is the empty tree. It is not safe for concurrent use.
type Range struct {
	Size  uint64
	Roots []Hash
}

// NewRange restores a range from its roots. The number of roots must be the
// number of one bits in size.
func NewRange(size uint64, roots []Hash) (Range, error) {
	if bits.OnesCount64(size) != len(roots) {
		return Range{}, errors.New("auditlog: the number of subtree roots does not fit the tree size")
	}
	return Range{Size: size, Roots: append([]Hash(nil), roots...)}, nil
}

// Append adds one leaf.
func (r *Range) Append(leaf Hash) {
	node := leaf
	for n := r.Size; n&1 == 1; n >>= 1 {
		last := len(r.Roots) - 1
		node = nodeHash(r.Roots[last], node)
		r.Roots = r.Roots[:last]
	}
	r.Roots = append(r.Roots, node)
	r.Size++
}

// Root is the tree head of the leaves appended so far. The root of an empty
// tree is SHA-256 of nothing, as RFC 6962 says.
func (r *Range) Root() Hash {
	if len(r.Roots) == 0 {
		return emptyRoot
	}
	root := r.Roots[len(r.Roots)-1]
	for i := len(r.Roots) - 2; i >= 0; i-- {
		root = nodeHash(r.Roots[i], root)
	}
	return root
}

// Clone returns a copy that shares nothing with r.
func (r *Range) Clone() Range {
	return Range{Size: r.Size, Roots: append([]Hash(nil), r.Roots...)}
}
