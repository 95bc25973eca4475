// Package ship delivers what a log records to a system that collects logs: in
// order, each row again and again until it is acknowledged, from where the last
// run came to. It knows nothing of how rows are read.
//
// A receiver that took a batch and died before it said so gets it once more, so
// delivery is at least once; origin and seq, which each row carries, tell a
// repetition.
package ship
