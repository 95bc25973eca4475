package index

import (
	"context"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
)

// schemaVersion grows with each change of the schema or of what is stored; an
// index of another version is made anew.
const schemaVersion = 3

// applicationID marks the file as an index ("mcpx").
const applicationID = 0x6d637078

// A segment is a file of the log. head is the hash of its first line, file its
// inode, ord its place among the files, next the place to go on from, lines
// the lines before it. last_* name the newest record there, by which a file
// that was rewritten is found.
//
// A record is found by its segment and position, in the order of the log.
// Times and durations are integers: nanoseconds since 1970, milliseconds.
//
// hours has, of each segment, the first and the last position of each hour, in
// hours since 1970: a query with times, or with a value that is rare, reads no
// other records. rollup has the sums of each hour, by what dimension says;
// there is a row wherever a record has the value, even if it counts nothing.
var schema = `
CREATE TABLE segments(
 id INTEGER PRIMARY KEY, ord INTEGER NOT NULL, path TEXT NOT NULL, file INTEGER NOT NULL, head BLOB NOT NULL,
 origin TEXT NOT NULL DEFAULT '', next INTEGER NOT NULL DEFAULT 0, lines INTEGER NOT NULL DEFAULT 0,
 last_pos INTEGER, last_len INTEGER, last_chain BLOB,
 records INTEGER NOT NULL DEFAULT 0, faults INTEGER NOT NULL DEFAULT 0, fault_line INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE records(
 segment INTEGER NOT NULL, pos INTEGER NOT NULL, len INTEGER NOT NULL, line INTEGER NOT NULL,
 seq INTEGER NOT NULL, leaf BLOB NOT NULL, kind TEXT NOT NULL, at INTEGER NOT NULL,
 op BLOB, intent_seq INTEGER, direction TEXT, method TEXT, tool TEXT, name TEXT,
 client TEXT, server TEXT, principal TEXT, outcome TEXT, decision TEXT, rule TEXT, duration INTEGER, status INTEGER,
 PRIMARY KEY(segment,pos)
) STRICT,WITHOUT ROWID;
CREATE INDEX records_op ON records(op,kind) WHERE op IS NOT NULL;
CREATE INDEX records_at ON records(at);
CREATE INDEX records_tool ON records(tool) WHERE tool IS NOT NULL;
CREATE INDEX records_outcome ON records(outcome) WHERE outcome IS NOT NULL AND outcome<>'success';
CREATE TABLE hours(
 hour INTEGER NOT NULL, segment INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, PRIMARY KEY(hour,segment)
) STRICT,WITHOUT ROWID;
CREATE TABLE rollup(
 dim INTEGER NOT NULL, hour INTEGER NOT NULL, value TEXT NOT NULL, segment INTEGER NOT NULL,
 calls INTEGER NOT NULL, errors INTEGER NOT NULL, denied INTEGER NOT NULL, limited INTEGER NOT NULL,
 ` + latencyColumns(" INTEGER NOT NULL") + `,
 PRIMARY KEY(dim,hour,value,segment)
) STRICT,WITHOUT ROWID;
`

// saltText is how salts stand in record lines.
var saltText = base64.RawURLEncoding

// errSchema says that a file is no index of this version.
var errSchema = errors.New("it is no index of this version")

// prepare makes the tables of a new index, or checks that an old one has them.
func prepare(ctx context.Context, db *sql.DB) error {
	var id, version, tables int
	err := db.QueryRowContext(ctx, `SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)`).Scan(&id, &version, &tables)
	if err != nil {
		return err
	}
	if id == applicationID && version == schemaVersion {
		return nil
	}
	if tables > 0 || id != 0 {
		return errSchema
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	// Another process may have made them meanwhile.
	if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema`).Scan(&tables); err != nil || tables > 0 {
		return errors.Join(err, tx.Rollback())
	}
	_, err = tx.ExecContext(ctx, schema+fmt.Sprintf("PRAGMA application_id=%d; PRAGMA user_version=%d;", applicationID, schemaVersion))
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// Is reports whether a file is an index, of any version.
func Is(ctx context.Context, path string) (is bool, err error) {
	db, err := openSQLite(path, "mode=ro&_query_only=1&_busy_timeout=10000")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var id int
	err = db.QueryRowContext(ctx, `SELECT application_id FROM pragma_application_id`).Scan(&id)
	if isDamaged(err) {
		return false, nil
	}
	return id == applicationID, err
}
