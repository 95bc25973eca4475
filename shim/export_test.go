package shim

// CheckBatch is checkBatch, which only Windows needs, for tests elsewhere.
var CheckBatch = checkBatch
