package sqlite

// applicationID marks a database as an audit log ("MCPA"), in its header.
const applicationID = 0x4d435041

// schema is the database's definition, statement by statement. `verify`
// compares what a database has with it, text by text.
//
// records.line is the record's line without its LF and its openings, pos the
// number of bytes of all lines before it, as they are exported. Nothing else is
// stored of a record: the other columns are computed from line when they are
// read, or when an index is written. v2 is for entries in the form of other
// systems. hashes is the Merkle tree over the records' leaves, in the order of
// tlog.StoredHashIndex.
//
// Triggers keep honest programs from changing records. They protect against
// nobody who can write the file; the seals in the lines do.
const schema = `CREATE TABLE records(seq INTEGER PRIMARY KEY,pos INTEGER NOT NULL,line TEXT NOT NULL,v2 TEXT,
ts TEXT GENERATED ALWAYS AS (json_extract(line,'$.timestamp')) VIRTUAL,
kind TEXT GENERATED ALWAYS AS (json_extract(line,'$.kind')) VIRTUAL,
method TEXT GENERATED ALWAYS AS (json_extract(line,'$.method')) VIRTUAL,
tool TEXT GENERATED ALWAYS AS (json_extract(line,'$.tool_name')) VIRTUAL,
client TEXT GENERATED ALWAYS AS (json_extract(line,'$.client_id')) VIRTUAL,
outcome TEXT GENERATED ALWAYS AS (json_extract(line,'$.outcome')) VIRTUAL,
op TEXT GENERATED ALWAYS AS (json_extract(line,'$.audit_operation_id')) VIRTUAL) STRICT;
CREATE INDEX records_ts ON records(ts);
CREATE INDEX records_tool ON records(tool,seq);
CREATE INDEX records_method ON records(method,seq);
CREATE INDEX records_client ON records(client,seq);
CREATE INDEX records_op ON records(op);
CREATE TABLE openings(seq INTEGER,field TEXT,salt BLOB NOT NULL,value TEXT NOT NULL,PRIMARY KEY(seq,field)) STRICT,WITHOUT ROWID;
CREATE TABLE hashes(idx INTEGER PRIMARY KEY,h BLOB NOT NULL) STRICT;
` + noUpdateTriggers + deleteTriggers + `CREATE VIEW audit_entries AS SELECT
json_extract(o.line,'$.id') AS id,
o.ts AS timestamp,
o.op AS audit_operation_id,
o.outcome AS outcome,
json_extract(o.line,'$.direction') AS direction,
json_extract(o.line,'$.transport') AS transport,
o.method AS method,
json_extract(o.line,'$.request_id') AS request_id,
coalesce((SELECT json_extract(value,'$') FROM openings WHERE seq=o.seq AND field='mcp_name'),json_extract(o.line,'$.mcp_name')) AS mcp_name,
o.tool AS tool_name,
coalesce((SELECT value FROM openings WHERE seq=coalesce(i.seq,o.seq) AND field='params'),coalesce(i.line,o.line)->'$.params') AS params,
coalesce((SELECT value FROM openings WHERE seq=o.seq AND field='result'),o.line->'$.result') AS result,
coalesce((SELECT value FROM openings WHERE seq=o.seq AND field='error'),o.line->'$.error') AS error,
json_extract(o.line,'$.duration_ms') AS duration_ms,
o.client AS client_id,
json_extract(o.line,'$.server_id') AS server_id,
coalesce((SELECT value FROM openings WHERE seq=o.seq AND field='principal'),o.line->'$.principal') AS principal,
o.line->'$.policy' AS policy
FROM records o LEFT JOIN records i ON i.seq=json_extract(o.line,'$.intent_seq') AND i.kind='intent'
WHERE o.kind='outcome' OR o.kind='event';
`

// recordsNoUpdate is dropped and made anew where a record is erased.
const recordsNoUpdate = `CREATE TRIGGER records_no_update BEFORE UPDATE OF seq,line ON records BEGIN SELECT RAISE(ABORT,'append-only');END;`

const noUpdateTriggers = recordsNoUpdate + `
CREATE TRIGGER hashes_no_update BEFORE UPDATE ON hashes BEGIN SELECT RAISE(ABORT,'append-only');END;
`

// deleteTriggers are apart: the store drops and makes them anew where it takes
// back the rows of a tail that is no record.
const deleteTriggers = `CREATE TRIGGER records_no_delete BEFORE DELETE ON records BEGIN SELECT RAISE(ABORT,'append-only');END;
CREATE TRIGGER hashes_no_delete BEFORE DELETE ON hashes BEGIN SELECT RAISE(ABORT,'append-only');END;
`
