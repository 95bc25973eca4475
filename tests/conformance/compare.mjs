#!/usr/bin/env node
// compare.mjs SERVER REVISION DIRECT OTHER [--only REGEXP] [--baseline FILE] [--list FILE]
// Compares two result directories of the suite check by check: scenario, check
// id, its occurrence and its status, be it SUCCESS, FAILURE, WARNING or SKIPPED.
//
// --only names the scenarios to look at. --baseline names the totals that DIRECT must have: otherwise two equally broken
// runs would compare as equal. --list names the differences that a documented
// rule demands; each of them must occur, and no other.
//
// Exit status: 0 as it should be, 1 different, 2 not to be compared.
import fs from 'node:fs';
import path from 'node:path';
import { parseArgs } from 'node:util';

const STATUSES = ['SUCCESS', 'FAILURE', 'WARNING', 'SKIPPED'];
const ABSENT = '-';

function* resultFiles(dir) {
  for (const entry of fs.readdirSync(dir, { withFileTypes: true })) {
    const file = path.join(dir, entry.name);
    if (entry.isDirectory()) yield* resultFiles(file);
    else if (entry.name === 'checks.json') yield file;
  }
}

/** The checks of a run: "scenario<TAB>check" or "scenario<TAB>check#n" to status. */
function load(dir, only) {
  const checks = new Map();
  const scenarios = new Set();
  for (const file of resultFiles(dir)) {
    // [server-]<scenario>-<time stamp>/checks.json
    const scenario = path
      .relative(dir, path.dirname(file))
      .replace(/-\d{4}-\d\d-\d\dT[^/]*$/, '')
      .replace(/^server-/, '');
    if (!only.test(scenario)) continue;
    scenarios.add(scenario);
    const seen = new Map();
    for (const check of JSON.parse(fs.readFileSync(file, 'utf8'))) {
      if (check.status === 'INFO') continue;
      if (!STATUSES.includes(check.status)) throw new Error(`${file}: status ${check.status}`);
      const n = (seen.get(check.id) ?? 0) + 1;
      seen.set(check.id, n);
      checks.set(`${scenario}\t${check.id}${n > 1 ? `#${n}` : ''}`, check.status);
    }
  }
  return { scenarios, checks };
}

function rows(file, server, revision) {
  return fs
    .readFileSync(file, 'utf8')
    .split('\n')
    .filter((line) => line && !line.startsWith('#'))
    .map((line) => line.split('\t'))
    .filter((row) => row[0] === server && row[1] === revision);
}

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: { only: { type: 'string', default: '' }, baseline: { type: 'string' }, list: { type: 'string' } },
});
const [server, revision, directDir, otherDir] = positionals;
const only = new RegExp(options.only);
const direct = load(directDir, only);
const other = load(otherDir, only);
let status = 0;

if (options.baseline) {
  const counts = STATUSES.map((s) => [...direct.checks.values()].filter((x) => x === s).length);
  const now = [server, revision, direct.scenarios.size, ...counts].join('\t');
  const recorded = rows(options.baseline, server, revision)[0]?.join('\t');
  if (recorded !== now) {
    console.log(`  the direct run has other totals than recorded:\n    recorded ${recorded}\n    now      ${now}`);
    status = 2;
  }
}

let differences = 0;
let demanded = 0;
for (const scenario of new Set([...direct.scenarios, ...other.scenarios])) {
  if (direct.scenarios.has(scenario) && other.scenarios.has(scenario)) continue;
  console.log(`  ${scenario} ran only ${direct.scenarios.has(scenario) ? 'direct' : 'behind the product'}`);
  differences++;
}
const listed = new Map();
for (const [, , scenario, check, from, to] of options.list ? rows(options.list, server, revision) : [])
  listed.set(`${scenario}\t${check}`, `${from} -> ${to}`);
for (const check of new Set([...direct.checks.keys(), ...other.checks.keys()])) {
  const from = direct.checks.get(check) ?? ABSENT;
  const to = other.checks.get(check) ?? ABSENT;
  if (from === to) continue;
  if (listed.get(check) === `${from} -> ${to}`) {
    listed.delete(check);
    demanded++;
    continue;
  }
  console.log(`  differs: ${server}\t${revision}\t${check}\t${from}\t${to}`);
  differences++;
}
for (const [check, change] of listed) {
  console.log(`  listed, but did not occur: ${check.replace('\t', ' ')}: ${change}`);
  differences++;
}
if (differences > 0 && status === 0) status = 1;
console.log(
  `  ${server} ${revision}: ${direct.scenarios.size} scenarios, ${direct.checks.size} checks, ` +
    `${differences} differences` + (demanded ? ` beside ${demanded} that a rule demands` : ''),
);
process.exitCode = direct.scenarios.size === 0 ? 2 : status;
