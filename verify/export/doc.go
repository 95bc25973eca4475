// Package export writes the calls of a log in the formats that other systems
// read: JSON lines, CSV, OCSF, CEF and syslog. Intent and outcome of a call are
// one row, and each row names the record that it was made of by number and
// hash. Rows are written one at a time, in bounded memory.
package export
