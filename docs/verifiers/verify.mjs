#!/usr/bin/env node
// A third reader of the log format, written from docs/log-format.md alone and
// apart from verify.py: Node.js without any package.
//
//   verify.mjs LOG [--pub VKEY] [--secret TEXT --key-id ID | --mac-key HEX]
//   verify.mjs --proof NAME.json NAME.tlog-proof --pub VKEY
//
// One line for each fault and exit status 1, or what is intact and 0. One file
// that begins a log.
import { createHash, createHmac, createPublicKey, verify as checkSignature } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';

const sha = (...parts) => parts.reduce((h, p) => h.update(p), createHash('sha256')).digest();
const mac = (key, ...parts) => parts.reduce((h, p) => h.update(p), createHmac('sha256', key)).digest();
const b64 = (raw) => raw.toString('base64url');
const u64 = (n) => { const b = Buffer.alloc(8); b.writeBigUInt64BE(BigInt(n)); return b; };

const SEAL = /^,"seal":\{"version":3,"seq":(0|[1-9]\d*),"leaf":"([\w-]{43})","chain":"([\w-]{43})","key_id":"([a-z0-9_-]{1,64})","epoch":(0|[1-9]\d*),"mac":"([\w-]{43})"\}/;

// Bytes are read as latin1, so that a character is a byte.
function skipString(s, i) {
  for (i++; s[i] !== '"'; i++) {
    if (s[i] === '\\') i++;
    if (i >= s.length) throw new Error('malformed_line');
  }
  return i + 1;
}

// skipValue passes over a value in canonical form.
function skipValue(s, i) {
  for (let depth = 0; ; ) {
    const c = s[i];
    if (c === undefined) throw new Error('malformed_line');
    if (c === '"') i = skipString(s, i);
    else if (depth === 0 && (c === ',' || c === '}' || c === ']')) return i;
    else {
      if (c === '{' || c === '[') depth++;
      if (c === '}' || c === ']') depth--;
      i++;
    }
  }
}

function members(object) {
  const found = new Map();
  for (let i = 1; i < object.length - 1; i++) {
    const colon = skipString(object, i);
    const end = skipValue(object, colon + 1);
    found.set(object.slice(i + 1, colon - 1), object.slice(colon + 1, end));
    i = end;
  }
  return found;
}

// split finds the seal at depth 1 and what may follow it.
function split(line) {
  if (line[0] !== '{') throw new Error('malformed_line');
  for (let i = 1; i < line.length; ) {
    if (line.startsWith(',"seal":{', i)) {
      const seal = SEAL.exec(line.slice(i));
      if (!seal) throw new Error('seal_malformed');
      const rest = line.slice(i + seal[0].length);
      const body = line.slice(0, i) + '}';
      if (rest === '}') return { body, seal, open: null };
      if (rest.startsWith(',"open":{') && rest.endsWith('}}')) return { body, seal, open: rest.slice(8, -1) };
      throw new Error('extra_member');
    }
    if (line[i] === ',') i++;
    else if (line[i] === '}') break;
    i = skipValue(line, skipString(line, i) + 1);
  }
  throw new Error('unsealed_record');
}

// root of a Merkle tree, as RFC 6962 section 2.1 defines it, from its perfect
// subtrees.
class Tree {
  size = 0;
  stack = [];
  add(leaf) {
    let node = { hash: leaf, width: 1 };
    while (this.stack.at(-1)?.width === node.width) {
      node = { hash: sha('\x01', this.stack.pop().hash, node.hash), width: node.width * 2 };
    }
    this.stack.push(node);
    this.size++;
  }
  root() {
    return this.stack.reduceRight((right, left) => right ? { hash: sha('\x01', left.hash, right.hash) } : left, null).hash;
  }
}

function openNote(note, vkey) {
  const at = note.indexOf('\n\n');
  const text = note.slice(0, at + 1);
  if (!vkey) return text.split('\n');
  const [name, hash, ...encoded] = vkey.split('+');
  const key = Buffer.from(encoded.join('+'), 'base64');
  const publicKey = createPublicKey({ format: 'jwk', key: { kty: 'OKP', crv: 'Ed25519', x: b64(key.subarray(1)) } });
  for (const line of note.slice(at + 2).trimEnd().split('\n')) {
    const [, signer, encodedSignature] = line.split(' ');
    const signature = Buffer.from(encodedSignature ?? '', 'base64');
    if (signer === name && signature.subarray(0, 4).toString('hex') === hash && key[0] === 1 &&
      checkSignature(null, Buffer.from(text), publicKey, signature.subarray(4))) return text.split('\n');
  }
  throw new Error('checkpoint_sig_invalid');
}

function checkOpenings(body, open) {
  const commits = new Map();
  for (const [name, value] of members(body)) {
    const commit = /^\{"\$c":"([\w-]{43})"\}$/.exec(value);
    if (commit) commits.set(name, commit[1]);
  }
  for (const [name, value] of open === null ? [] : members(open)) {
    const salt = Buffer.from(value.slice(2, 24), 'base64url');
    const opened = Buffer.from(value.slice(26, -1), 'latin1');
    if (b64(sha('auditlog/v3/open\n', u64(name.length), name, salt, opened)) !== commits.get(name)) throw new Error('opening_mismatch');
    commits.delete(name);
  }
  return [...commits.keys()];
}

function verifyLog(file, { pub, k0, keyID }) {
  const lines = readFileSync(file, 'latin1').split('\n');
  const torn = lines.pop() !== '';
  const tree = new Tree();
  const keys = [];
  // What is missing, until a record of its erasure comes: [seq, member or *, line, finding].
  let missing = [];
  let chain, origin, faults = 0, checkpoints = 0;
  const macKey = (epoch) => {
    for (let e = keys.length; e <= epoch; e++) {
      keys.push(e === 0 ? k0 : mac(keys[e - 1], 'auditlog/v3/evolve\n', origin, u64(e)));
    }
    return mac(keys[epoch], 'auditlog/v3/mac\n');
  };
  lines.forEach((line, index) => {
    const faultsOfLine = [];
    const check = (ok, finding) => { if (!ok) faultsOfLine.push(finding); };
    try {
      const { body, seal, open } = split(line);
      const [, seqText, leafText, chainText, kid, epochText, code] = seal;
      const record = JSON.parse(Buffer.from(body, 'latin1').toString('utf8'));
      if (chain === undefined) {
        if (record.kind !== 'genesis' && record.kind !== 'chain_break') throw new Error('genesis_missing');
        origin = record.origin;
        chain = sha('auditlog/v3/genesis\n', origin);
      }
      check(Number(seqText) === tree.size, 'seq_gap or seq_regression');
      if (body === '{"erased":true}') missing.push([Number(seqText), '*', index + 1, 'content_modified']);
      else check(b64(sha('\0', Buffer.from(body, 'latin1'))) === leafText, 'content_modified');
      if (record.kind === 'checkpoint') {
        const text = openNote(record.note, pub);
        check(text.join('\n') === `${origin}\n${tree.size}\n${tree.root().toString('base64')}\n`, 'checkpoint_mismatch');
        checkpoints++;
      }
      if (Number(seqText) === tree.size) {
        const leaf = Buffer.from(leafText, 'base64url');
        chain = sha('\x02', chain, u64(seqText), leaf);
        check(b64(chain) === chainText, 'chain_broken');
        if (k0) {
          check(kid === keyID, 'unknown_key');
          check(b64(mac(macKey(Number(epochText)), '\x03', chain)) === code, 'mac_invalid');
        }
        tree.add(leaf);
      }
      for (const name of checkOpenings(body, open)) missing.push([Number(seqText), name, index + 1, 'opening_missing']);
      if (record.kind === 'erasure') {
        missing = missing.filter(([seq, name]) => {
          const covered = seq === record.target && ['*', name].includes(record.field);
          if (covered) console.log(`erased: ${name} of record ${seq}, authorised by ${record.authorised_by}`);
          return !covered;
        });
      }
    } catch (e) {
      faultsOfLine.push(e instanceof SyntaxError ? 'malformed_line' : e.message);
    }
    for (const f of faultsOfLine) console.log(`line ${index + 1}: ${f}`);
    faults += faultsOfLine.length;
  });
  for (const [, , line, finding] of missing) console.log(`line ${line}: ${finding}`);
  faults += missing.length;
  if (torn) { console.log(`line ${lines.length + 1}: torn_tail`); faults++; }
  if (tree.size === 0 && faults === 0) { console.log('line 1: empty_log'); faults++; }
  if (faults === 0) {
    console.log(`intact: ${tree.size} records of ${origin}, root ${tree.root().toString('base64')}, ` +
      `MACs ${k0 ? 'checked' : 'not checked'}, ${checkpoints} checkpoints ${pub ? 'verified' : 'not verified'}`);
  }
  return faults > 0 ? 1 : 0;
}

function verifyProof(recordFile, proofFile, pub) {
  try {
    if (!pub) throw new Error('a proof needs --pub');
    const { body } = split(readFileSync(recordFile, 'latin1').replace(/\n$/, ''));
    const proof = readFileSync(proofFile, 'utf8');
    const at = proof.indexOf('\n\n');
    const [version, index, ...nodes] = proof.slice(0, at).split('\n');
    const [origin, size, root] = openNote(proof.slice(at + 2), pub);
    const n = Number(/^index (0|[1-9]\d*)$/.exec(index)?.[1] ?? NaN);
    if (version !== 'c2sp.org/tlog-proof@v1' || !(n < Number(size))) throw new Error('its head is not that of a proof');
    // RFC 9162 section 2.1.3.2.
    let fn = n, sn = Number(size) - 1, hash = sha('\0', Buffer.from(body, 'latin1'));
    for (const node of nodes.map((t) => Buffer.from(t, 'base64'))) {
      if (sn === 0) throw new Error('the path is too long');
      if (fn % 2 === 1 || fn === sn) {
        hash = sha('\x01', node, hash);
        while (fn % 2 === 0 && fn > 0) { fn = Math.floor(fn / 2); sn = Math.floor(sn / 2); }
      } else hash = sha('\x01', hash, node);
      fn = Math.floor(fn / 2);
      sn = Math.floor(sn / 2);
    }
    if (sn !== 0 || hash.toString('base64') !== root) throw new Error('the path does not lead to the root');
    console.log(`record ${n} is in ${origin}, size ${size}`);
    return 0;
  } catch (e) {
    console.log(`proof_invalid: ${e.message}`);
    return 1;
  }
}

const { values: o, positionals } = parseArgs({ allowPositionals: true, options: {
  pub: { type: 'string' }, secret: { type: 'string' }, 'mac-key': { type: 'string' },
  'key-id': { type: 'string', default: 'k1' }, proof: { type: 'boolean' } } });
const k0 = o['mac-key'] ? Buffer.from(o['mac-key'], 'hex') : o.secret ? mac(o.secret, 'auditlog/v3/static\n', o['key-id']) : null;
process.exitCode = o.proof ? verifyProof(positionals[0], positionals[1], o.pub) : verifyLog(positionals[0], { pub: o.pub, k0, keyID: o['key-id'] });
