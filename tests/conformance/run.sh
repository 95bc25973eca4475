#!/usr/bin/env bash
# run.sh [PART...]: runs the public MCP conformance suite against servers and
# clients, direct and through the product, and compares check by check. The
# parts, by default all of them, in this order:
#
#   observe  server scenarios, mode observe: no difference
#   enforce  server scenarios, the default configuration: the differences of
#            enforced.tsv, each with the rule that demands it, and no other
#   client   client scenarios, behind the product at the server's own address
#   stdio    server scenarios of a stdio server behind the shim
#   faults   broken proxies: each must show a difference
#
# docs/conformance.md says more. Exit status: 0 all as it should be, 1 not, 2 the
# run itself is not possible.
#
#   MCP_AUDIT_BIN         folder of caddy, mcp-audit and mcp-audit-shim (bin)
#   CONFORMANCE_PORT      first of the 70 ports that are used (23800)
#   CONFORMANCE_REVISIONS the revisions of observe and enforce, such as "2025-11-25"
#   CONFORMANCE_SERVERS   their servers, such as "stateful fixture"
#   CONFORMANCE_NO_CLIENT 1 leaves the client part out where there are no
#                         network namespaces; otherwise their absence is an error
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tests=$(dirname "$here")
work=$here/.work
bin=${MCP_AUDIT_BIN:-$(dirname "$tests")/bin}
port=${CONFORMANCE_PORT:-23800}
suite=$here/npm/node_modules/@modelcontextprotocol/conformance
everything=$here/npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js
bound=$tests/npm/loopback.cjs # makes what would listen everywhere listen on 127.0.0.1
revisions=${CONFORMANCE_REVISIONS:-2025-03-26 2025-06-18 2025-11-25 2026-07-28 req:2025-11-25 req:2026-07-28}
upstreams=${CONFORMANCE_SERVERS:-stateful stateless everything fixture}
parts=("$@")
[[ ${#parts[@]} -gt 0 ]] || parts=(observe enforce client stdio faults)
failed=()

die() {
	echo "conformance: $*" >&2
	exit 2
}

say() { printf '== %s (%d s)\n' "$*" "$SECONDS"; }

# --- processes: only those started here are ended, by pid and start time

started() { sed 's/^.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# spawn NAME PORT COMMAND...: starts a program, and waits until it listens
spawn() {
	local name=$1 at=$2 pid
	shift 2
	! listening "$at" || die "port $at ($name) is taken: end its owner, or set CONFORMANCE_PORT"
	"$@" >"$work/run/$name.log" 2>&1 </dev/null 9>&- &
	pid=$!
	echo "$pid $(started $pid)" >"$work/run/$name.pid"
	for _ in $(seq 600); do
		listening "$at" && return 0
		kill -0 $pid 2>/dev/null || break
		sleep 0.05
	done
	tail -n 20 "$work/run/$name.log" >&2
	die "$name did not begin to listen on port $at"
}

# halt NAME...: ends what spawn started under these names
halt() {
	local name pid start
	for name; do
		[[ -f $work/run/$name.pid ]] || continue
		read -r pid start <"$work/run/$name.pid"
		rm -f "$work/run/$name.pid"
		[[ -n $start && $(started "$pid") = "$start" ]] || continue
		kill "$pid" 2>/dev/null
		for _ in $(seq 100); do
			[[ $(started "$pid") = "$start" ]] || continue 2
			sleep 0.05
		done
		kill -9 "$pid" 2>/dev/null
		echo "  $name had to be killed"
		failed+=("$name did not end")
	done
}

halt_all() {
	local file
	for file in "$work"/run/*.pid; do
		[[ ! -f $file ]] || halt "$(basename "$file" .pid)"
	done
}

# --- running and comparing

# run_suite DIR URL REVISION [SCENARIO]: the server scenarios of a revision, or of
# its requirement set where it is written req:REVISION, or one of them. The suite's
# exit status tells of failed checks; that it ran is told by its results, which
# compare.mjs counts.
run_suite() {
	local dir=$1 url=$2 revision=$3 which
	case $3,${4:-} in
	*,?*) which=(--scenario "$4" --spec-version "${revision#req:}" --force) ;;
	req:*) which=(--requirements "${revision#req:}") ;;
	*) which=(--suite all --spec-version "$revision") ;;
	esac
	rm -rf "$dir"
	mkdir -p "$dir"
	node "$suite/dist/index.js" server --url "$url" "${which[@]}" --timeout "$timeout" -o "$dir" >"$dir/console.log" 2>&1 9>&-
	return 0
}

# compare SERVER REVISION DIRECT OTHER [OPTION...]
compare() {
	node "$here/compare.mjs" "$@" --baseline "$here/baseline.tsv" || failed+=("$part: $1 $2")
}

# compare_at DIRECT_URL OTHER_URL SERVER REVISION DIRECT OTHER [OPTION...]: as
# compare, but where it fails the scenarios that allow a server 0.8 or 1.5 s for a
# notification are run once more on both sides, because a busy machine misses
# that, with or without the product. A difference in any other stays one.
timed_scenarios=(server-stateless)
compare_at() {
	local direct_url=$1 other_url=$2 scenario
	shift 2
	if node "$here/compare.mjs" "$@" --baseline "$here/baseline.tsv"; then
		return
	fi
	if [[ ${2#req:} = 2026-07-28 ]]; then
		for scenario in "${timed_scenarios[@]}"; do
			echo "  once more: $1 $2 $scenario"
			rerun "$3" "$direct_url" "$2" "$scenario"
			rerun "$4" "$other_url" "$2" "$scenario"
		done
	fi
	compare "$@"
}

# rerun DIR URL REVISION SCENARIO: puts a fresh run of a scenario in the place of
# the one in DIR, if that has it
rerun() {
	local old again=$work/run/again
	old=("$1"/server-"$4"-2*)
	[[ -d ${old[0]} ]] || return 0
	run_suite "$again" "$2" "$3" "$4"
	rm -rf "${old[@]}"
	mv "$again"/server-"$4"-2* "$1"
}

# verify LOG...: the evidence of a run must verify, without a finding and with an
# outcome for each intent; together the logs must tell of some
verify() {
	local log operations outcomes total=0
	for log; do
		if ! "$bin/mcp-audit" verify "$log" >"$work/run/verify.txt" 2>&1 || ! grep -qx 'findings: none' "$work/run/verify.txt"; then
			cat "$work/run/verify.txt"
			failed+=("$part: the log $log does not verify")
			continue
		fi
		operations=$(sed -n 's/^records: .*intent \([0-9]*\).*/\1/p' "$work/run/verify.txt")
		outcomes=$(sed -n 's/^records: .*outcome \([0-9]*\).*/\1/p' "$work/run/verify.txt")
		[[ ${operations:-0} = "${outcomes:-0}" ]] || failed+=("$part: $log has $operations intents, but $outcomes outcomes")
		total=$((total + ${operations:-0}))
	done
	[[ $total -gt 0 ]] || failed+=("$part: nothing was recorded")
	echo "  evidence: $# logs, $total operations"
}

declare -A paths=([stateful]=/ [stateless]=/ [everything]=/mcp [fixture]=/mcp)
declare -A ports=([stateful]=$((port + 1)) [stateless]=$((port + 2)) [everything]=$((port + 3)) [fixture]=$((port + 4)))
declare -A have_direct=()

# What the fixture is for; it has nothing of the rest.
only_fixture='^(server-sse-polling|tasks-.*)$'

# direct SERVER REVISION: the results of the server itself, once a run
direct() {
	direct_dir=$work/results/direct/$1/${2/:/-}
	direct_url=http://localhost:${ports[$1]}${paths[$1]}
	[[ -z ${have_direct[$1 $2]:-} ]] || return 0
	run_suite "$direct_dir" "$direct_url" "$2"
	have_direct[$1 $2]=1
}

# start_servers: the upstreams, once a run
start_servers() {
	[[ ! -f $work/run/stateful.pid ]] || return 0
	spawn stateful "${ports[stateful]}" "$work/bin/everything-server" -stateless=false -http "localhost:${ports[stateful]}"
	spawn stateless "${ports[stateless]}" "$work/bin/everything-server" -http "localhost:${ports[stateless]}"
	spawn everything "${ports[everything]}" env PORT="${ports[everything]}" node --require "$bound" "$everything" streamableHttp
	spawn fixture "${ports[fixture]}" "$work/bin/fixture" -http "localhost:${ports[fixture]}"
}

# start_caddy NAME PORT CONFIG: Caddy with a log and folders of its own; the four
# servers are behind PORT+1 to PORT+4
start_caddy() {
	local folder=$work/caddy/$1
	rm -rf "$folder"
	mkdir -p "$folder"
	CONFORMANCE_LOG=$folder/log/audit.jsonl XDG_DATA_HOME=$folder XDG_CONFIG_HOME=$folder \
		CONFORMANCE_STATEFUL=${ports[stateful]} CONFORMANCE_PROXY_STATEFUL=$(($2 + 1)) \
		CONFORMANCE_STATELESS=${ports[stateless]} CONFORMANCE_PROXY_STATELESS=$(($2 + 2)) \
		CONFORMANCE_EVERYTHING=${ports[everything]} CONFORMANCE_PROXY_EVERYTHING=$(($2 + 3)) \
		CONFORMANCE_FIXTURE=${ports[fixture]} CONFORMANCE_PROXY_FIXTURE=$(($2 + 4)) \
		spawn "caddy-$1" "$(($2 + 1))" "$bin/caddy" run --config "$3" --adapter caddyfile
}

# --- the parts

# servers PORT OPTION [LIST]: the server scenarios, direct and behind the product
servers() {
	local server revision dir url options
	start_servers
	CONFORMANCE_OPTION=$2 start_caddy "$part" "$1" "$here/Caddyfile"
	for revision in $revisions; do
		for server in $upstreams; do
			options=(${3:+--list "$3"})
			if [[ $server = fixture ]]; then
				[[ $revision = 2025-11-25 || $revision = req:2026-07-28 ]] || continue
				options+=(--only "$only_fixture")
			fi
			direct "$server" "$revision"
			dir=$work/results/$part/$server/${revision/:/-}
			url=http://localhost:$(($1 + ${ports[$server]} - port))${paths[$server]}
			run_suite "$dir" "$url" "$revision"
			compare_at "$direct_url" "$url" "$server" "$revision" "$direct_dir" "$dir" "${options[@]}"
		done
	done
	halt "caddy-$part"
	verify "$work/caddy/$part/log/audit.jsonl"
}

part_observe() { servers $((port + 10)) 'mode observe'; }

part_enforce() { servers $((port + 20)) '' "$here/enforced.tsv"; }

# client_suite DIR REVISION COMMAND: client scenarios, which the suite runs at
# once. Its servers listen on every interface; here that is a namespace's loopback.
client_suite() {
	rm -rf "$1"
	mkdir -p "$1"
	$namespace "$work/bin/behind" -loopback \
		node "$suite/dist/index.js" client --command "$3" --requirements "$2" --timeout 300000 -o "$1" >"$1/console.log" 2>&1 9>&-
	return 0
}

# find_namespace: how to get a network namespace, if at all
find_namespace() {
	for namespace in 'unshare -n' 'unshare -rn' ''; do
		[[ -z $namespace ]] || ! $namespace true 2>/dev/null || return 0
	done
	[[ ${CONFORMANCE_NO_CLIENT:-} = 1 ]] ||
		die 'the client part needs network namespaces, and "unshare -rn true" fails here; CONFORMANCE_NO_CLIENT=1 leaves the part out'
}

part_client() {
	local revision mode dir
	if [[ -z $namespace ]]; then
		echo '  LEFT OUT: there are no network namespaces, and CONFORMANCE_NO_CLIENT is set'
		return
	fi
	rm -rf "$work/caddy/client"
	touch "$work"/run/turn-{1,2,3}
	export CONFORMANCE_TURNS=$work/run CONFORMANCE_CADDY=$bin/caddy CONFORMANCE_OPTION CONFORMANCE_LOGS
	for revision in 2025-11-25 2026-07-28; do
		client_suite "$work/results/direct/client/$revision" $revision "$work/bin/everything-client"
		for mode in observe enforce; do
			CONFORMANCE_OPTION=
			[[ $mode = enforce ]] || CONFORMANCE_OPTION='mode observe'
			CONFORMANCE_LOGS=$work/caddy/client/$mode-$revision
			dir=$work/results/client-$mode/$revision
			mkdir -p "$CONFORMANCE_LOGS"
			client_suite "$dir" $revision "$work/bin/behind $work/bin/everything-client"
			compare client $revision "$work/results/direct/client/$revision" "$dir"
			verify "$CONFORMANCE_LOGS"/*/audit.jsonl
		done
	done
}

# bridge NAME PORT session|shared COMMAND...: a stdio server on HTTP
bridge() { spawn "$1" "$2" node "$here/bridge.mjs" "$2" "$3" -- "${@:4}"; }

# With --caddy the shims find Caddy, and Caddy finds their children, in a folder
# for sockets, whose path has to be short.
part_stdio() {
	local at=$((port + 40)) revision n dir url=http://localhost server=$work/bin/everything-server
	rm -rf "$work/stdio"
	sockets=$(mktemp -d)
	export MCP_AUDIT_DIR=$work/stdio XDG_RUNTIME_DIR=$sockets
	CONFORMANCE_OPTION='' start_caddy shim $at "$here/Caddyfile.shim"
	bridge bridge-2 $((at + 2)) session "$server"
	bridge bridge-3 $((at + 3)) session "$bin/mcp-audit-shim" -- "$server"
	bridge bridge-4 $((at + 4)) session "$bin/mcp-audit-shim" --caddy "http://127.0.0.1:$((at + 1))" -- "$server"
	bridge bridge-5 $((at + 5)) shared "$server"
	bridge bridge-6 $((at + 6)) shared "$bin/mcp-audit-shim" -- "$server"
	bridge bridge-7 $((at + 7)) shared "$bin/mcp-audit-shim" --caddy "http://127.0.0.1:$((at + 1))" -- "$server"
	for revision in 2025-06-18 2025-11-25 2026-07-28; do
		n=2
		[[ $revision != 2026-07-28 ]] || n=5
		dir=$work/results/stdio
		run_suite "$dir/direct/$revision" "$url:$((at + n))/" $revision
		run_suite "$dir/embedded/$revision" "$url:$((at + n + 1))/" $revision
		run_suite "$dir/caddy/$revision" "$url:$((at + n + 2))/" $revision
		compare_at "$url:$((at + n))/" "$url:$((at + n + 1))/" stdio $revision "$dir/direct/$revision" "$dir/embedded/$revision"
		compare_at "$url:$((at + n))/" "$url:$((at + n + 2))/" stdio $revision "$dir/direct/$revision" "$dir/caddy/$revision"
	done
	halt bridge-{2..7} caddy-shim
	verify "$work/stdio/audit.jsonl"
	verify "$work/caddy/shim/log/audit.jsonl"
	rm -rf "$sockets"
	unset MCP_AUDIT_DIR XDG_RUNTIME_DIR
}

# Each line of faults.tsv is a proxy that is broken in one way. A comparison that
# does not notice it proves nothing.
part_faults() {
	local fault server revision scenario directives n=0 at=$((port + 50)) folder=$work/results/faults
	local -a names=()
	start_servers
	mkdir -p "$work/caddy"
	printf '{\n\tadmin off\n\tauto_https off\n\tpersist_config off\n\tgrace_period 500ms\n}\n' >"$work/caddy/faults"
	while IFS=$'\t' read -r fault server revision scenario directives; do
		n=$((n + 1))
		printf 'http://:%s {\n\tbind 127.0.0.1\n\treverse_proxy localhost:%s {\n%b\n\t}\n}\n' \
			$((at + n)) "${ports[$server]}" "$directives" >>"$work/caddy/faults"
		names+=("$fault $server $revision $scenario")
	done < <(grep -v '^#' "$here/faults.tsv")
	XDG_DATA_HOME=$work/caddy XDG_CONFIG_HOME=$work/caddy \
		spawn caddy-faults $((at + 1)) "$bin/caddy" run --config "$work/caddy/faults" --adapter caddyfile
	timeout=8000
	for n in "${!names[@]}"; do
		read -r fault server revision scenario <<<"${names[n]}"
		direct "$server" "$revision"
		run_suite "$folder/$n" "http://localhost:$((at + n + 1))${paths[$server]}" "$revision" "$scenario"
		node "$here/compare.mjs" "$server" "$revision" "$direct_dir" "$folder/$n" --only "^$scenario\$" >"$work/run/fault.txt"
		case $? in
		1) echo "  $fault: noticed by $server $revision $scenario" ;;
		*)
			cat "$work/run/fault.txt"
			failed+=("faults: $fault was not noticed by $server $revision $scenario")
			;;
		esac
	done
	halt caddy-faults
}

# --- start

cd "$here" || exit 2
mkdir -p "$work/run" "$work/bin"
exec 9>"$work/lock"
flock -n 9 || die "another run is using $work"
for program in caddy mcp-audit mcp-audit-shim; do
	[[ -x $bin/$program ]] || die "no $program in $bin: make build"
done
for part in "${parts[@]}"; do
	declare -F "part_$part" >/dev/null || die "no part $part"
done
[[ " ${parts[*]} " != *' client '* ]] || find_namespace
halt_all # of a run that was killed
trap 'halt_all; rm -rf "${sockets:-}"' EXIT
trap 'exit 130' INT TERM

say "installing"
node_bin=$(echo "$here"/npm/node_modules/node-linux-*/bin)
if [[ ! -x $node_bin/node || $here/npm/package-lock.json -nt $here/npm/node_modules/.package-lock.json ]]; then
	(cd npm && npm ci --loglevel=error && touch node_modules/.package-lock.json) 9>&- || die 'npm ci failed'
	node_bin=$(echo "$here"/npm/node_modules/node-linux-*/bin)
fi
[[ -x $node_bin/node ]] || die "no Node.js for $(uname -m) in npm/package.json"
PATH=$node_bin:$PATH
sdk=github.com/modelcontextprotocol/go-sdk/conformance
(cd "$tests" && go build -o "$work/bin/" $sdk/everything-server $sdk/everything-client ./cmd/fixture ./conformance/behind) 9>&- ||
	die 'the servers and clients do not build'

timeout=30000
for part in "${parts[@]}"; do
	say "$part"
	"part_$part"
done
halt_all

say "done"
if [[ ${#failed[@]} -gt 0 ]]; then
	printf 'FAILED: %s\n' "${failed[@]}"
	exit 1
fi
echo "== conformance: as it should be"
