#!/usr/bin/env python3
"""A second reader of the log format, written from docs/log-format.md alone.

    verify.py LOG [--pub VKEY] [--secret TEXT --key-id ID | --mac-key HEX]
    verify.py --proof NAME.json NAME.tlog-proof --pub VKEY

It prints one line for each fault and exits with 1, or says what is intact and
exits with 0. One file that begins a log; the standard library only.
"""
import argparse, base64, hashlib, hmac, json, re, sys

SEAL = re.compile(rb',"seal":\{"version":3,"seq":(0|[1-9]\d*),"leaf":"([\w-]{43})","chain":"([\w-]{43})",'
                  rb'"key_id":"([a-z0-9_-]{1,64})","epoch":(0|[1-9]\d*),"mac":"([\w-]{43})"\}')
sha = lambda *parts: hashlib.sha256(b"".join(parts)).digest()
mac = lambda key, *parts: hmac.new(key, b"".join(parts), hashlib.sha256).digest()
b64 = lambda raw: base64.urlsafe_b64encode(raw).rstrip(b"=")
u64 = lambda n: n.to_bytes(8, "big")


def string_end(b, i):
    i += 1
    while b[i:i + 1] != b'"':
        i += 2 if b[i:i + 1] == b"\\" else 1
        if i >= len(b):
            raise ValueError
    return i + 1


def members(b):
    """The members of an object in canonical form, as they stand."""
    i = 1
    while i < len(b) - 1:
        end = string_end(b, i)
        name, start, depth, i = b[i + 1:end - 1], end + 1, 0, end + 1
        while i < len(b) and (depth or b[i:i + 1] not in (b",", b"}")):
            c = b[i:i + 1]
            depth += (c in b"{[") - (c in b"}]")
            i = string_end(b, i) if c == b'"' else i + 1
        yield name, b[start:i]
        i += 1


def split(line):
    """Body, seal and openings of a line; the seal is at depth 1."""
    i, depth = 0, 0
    while i < len(line):
        c = line[i:i + 1]
        if depth == 1 and line.startswith(b',"seal":{', i):
            seal = SEAL.match(line, i)
            rest = line[seal.end():] if seal else b""
            if rest == b"}":
                return line[:i] + b"}", seal, b""
            if rest.startswith(b',"open":{') and rest.endswith(b"}}"):
                return line[:i] + b"}", seal, rest[8:-1]
            return None
        depth += (c in b"{[") - (c in b"}]")
        i = string_end(line, i) if c == b'"' else i + 1


class Tree:
    """Merkle tree of RFC 6962 as its perfect subtrees."""
    def __init__(self):
        self.size, self.parts = 0, []

    def add(self, leaf):
        n, self.size = self.size, self.size + 1
        while n & 1:
            leaf, n = sha(b"\1", self.parts.pop(), leaf), n >> 1
        self.parts.append(leaf)

    def root(self):
        *left, h = self.parts
        while left:
            h = sha(b"\1", left.pop(), h)
        return h


P, L = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P


def ed_add(a, b):
    A, B = (a[1] - a[0]) * (b[1] - b[0]) % P, (a[1] + a[0]) * (b[1] + b[0]) % P
    C, E = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    e, f, g, h = B - A, E - C, E + C, B + A
    return e * f % P, g * h % P, f * g % P, e * h % P


def ed_mul(s, p):
    q = (0, 1, 1, 0)
    while s:
        q, p, s = ed_add(q, p) if s & 1 else q, ed_add(p, p), s >> 1
    return q


def ed_point(raw):
    y = int.from_bytes(raw, "little")
    sign, y = y >> 255, y & (2**255 - 1)
    x2 = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(x2, (P + 3) // 8, P)
    if (x * x - x2) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if y >= P or (x * x - x2) % P or (x == 0 and sign):
        raise ValueError
    x = x if x & 1 == sign else P - x
    return x, y, 1, x * y % P


def ed_verify(key, message, sig):
    s = int.from_bytes(sig[32:], "little")
    k = int.from_bytes(hashlib.sha512(sig[:32] + key + message).digest(), "little") % L
    a, b = ed_mul(s, ed_point((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))), ed_add(ed_point(sig[:32]), ed_mul(k, ed_point(key)))
    return s < L and not (a[0] * b[2] - b[0] * a[2]) % P and not (a[1] * b[2] - b[1] * a[2]) % P


def open_note(note, vkey):
    """The text of a signed note (C2SP signed-note), checked if there is a key."""
    text, _, signatures = note.partition("\n\n")
    if vkey:
        name, key_hash, key = vkey.split("+", 2)
        key = base64.b64decode(key)
        for line in signatures.splitlines():
            _, signer, sig = line.split(" ")
            sig = base64.b64decode(sig)
            if signer == name and sig[:4].hex() == key_hash and key[0] == 1 and ed_verify(key[1:], (text + "\n").encode(), sig[4:]):
                return text
        raise ValueError("no signature of " + name)
    return text


def check_openings(body, openings):
    """The committed members without their value; an error if one has another."""
    commits = {n: json.loads(v)["$c"] for n, v in members(body) if re.fullmatch(rb'\{"\$c":"[\w-]{43}"\}', v)}
    for name, value in members(openings or b"{}"):
        salt = base64.urlsafe_b64decode(value[2:24] + b"==")
        if b64(sha(b"auditlog/v3/open\n", u64(len(name)), name, salt, value[26:-1])).decode() != commits.pop(name, None):
            raise ValueError
    return [name.decode() for name in commits]


def verify(path, pub, root_key, key_id):
    faults, tree, chain, origin, keys, checkpoints, missing = 0, Tree(), None, "", {}, 0, {}
    for number, line in enumerate(open(path, "rb").read().split(b"\n"), 1):
        def fault(finding):
            nonlocal faults
            faults += 1
            print(f"line {number}: {finding}")
        if not line:
            if number <= tree.size:
                fault("malformed_line")
            continue
        try:
            parts = split(line)
            body = json.loads(parts[0])
        except (ValueError, TypeError):
            fault("malformed_line or seal_malformed")
            continue
        raw, (seq, leaf, link, kid, epoch, code) = parts[0], parts[1].groups()
        seq, epoch, kind = int(seq), int(epoch), body.get("kind")
        if chain is None:
            if kind not in ("genesis", "chain_break"):
                return print("the file does not begin a log") or 1
            origin = body["origin"]
            chain = sha(b"auditlog/v3/genesis\n", origin.encode())
        if kind == "checkpoint":
            try:
                want = [origin, str(tree.size), base64.b64encode(tree.root()).decode()]
                if open_note(body["note"], pub).split("\n") != want:
                    fault("checkpoint_mismatch")
                checkpoints += 1
            except ValueError:
                fault("checkpoint_sig_invalid")
        if seq != tree.size:
            fault("seq_gap or seq_regression")
            continue
        if raw == b'{"erased":true}':
            missing[seq, "*"] = (number, "content_modified")
        elif b64(sha(b"\0", raw)) != leaf:
            fault("content_modified")
        leaf = base64.urlsafe_b64decode(leaf + b"=")
        chain = sha(b"\2", chain, u64(seq), leaf)
        if b64(chain) != link:
            fault("chain_broken")
        if root_key:
            if kid.decode() != key_id:
                fault("unknown_key")
            key = keys.setdefault(0, root_key)
            for e in range(1, epoch + 1):
                key = keys.setdefault(e, mac(key, b"auditlog/v3/evolve\n", origin.encode(), u64(e)))
            if b64(mac(mac(key, b"auditlog/v3/mac\n"), b"\3", chain)) != code:
                fault("mac_invalid")
        try:
            for name in check_openings(raw, parts[2]):
                missing[seq, name] = (number, "opening_missing")
        except (ValueError, IndexError):
            fault("opening_mismatch")
        if kind == "erasure" and body["target"] < seq:
            for gone in [m for m in missing if m[0] == body["target"] and body["field"] in ("*", m[1])]:
                del missing[gone]
                print(f"erased: {gone[1]} of record {gone[0]}, authorised by {body['authorised_by']}")
        tree.add(leaf)
    for number, finding in missing.values():
        fault(finding)
    if not faults:
        print(f"intact: {tree.size} records of {origin}, root {base64.b64encode(tree.root()).decode()}, "
              f"MACs {'checked' if root_key else 'not checked'}, {checkpoints} checkpoints {'verified' if pub else 'not verified'}")
    return int(faults > 0)


def verify_proof(record, proof, pub):
    try:
        body, _, _ = split(open(record, "rb").read().rstrip(b"\n"))
        head, _, note = open(proof).read().partition("\n\n")
        version, index, *path = head.split("\n")
        text = open_note(note, pub).split("\n")
        n, size, h = int(index.split(" ")[1]), int(text[1]), sha(b"\0", body)
        low, high = n, size - 1
        for node in (base64.b64decode(p) for p in path):
            if low & 1 or low == high:
                h = sha(b"\1", node, h)
                while not low & 1 and low:
                    low, high = low >> 1, high >> 1
            else:
                h = sha(b"\1", h, node)
            low, high = low >> 1, high >> 1
        good = version == "c2sp.org/tlog-proof@v1" and n < size and high == 0 and base64.b64encode(h).decode() == text[2]
    except (ValueError, TypeError, IndexError) as e:
        return print(f"proof_invalid: {e}") or 1
    print(f"record {n} is in {text[0]}, size {size}" if good else "proof_invalid: the path does not lead to the root")
    return int(not good)


if __name__ == "__main__":
    a = argparse.ArgumentParser()
    a.add_argument("files", nargs="+")
    for flag in ("--pub", "--secret", "--mac-key"):
        a.add_argument(flag)
    a.add_argument("--key-id", default="k1")
    a.add_argument("--proof", action="store_true")
    o = a.parse_args()
    if o.proof:
        sys.exit(verify_proof(*o.files, o.pub))
    k0 = bytes.fromhex(o.mac_key or "") or (o.secret and mac(o.secret.encode(), b"auditlog/v3/static\n", o.key_id.encode()))
    sys.exit(verify(o.files[0], o.pub, k0, o.key_id))
