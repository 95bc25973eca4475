#!/usr/bin/env bash
# client.sh CLIENT... URL: runs a client of the suite behind the product. The
# suite starts a server for each scenario and appends its URL.
#
# The server's address is part of what is tested (a token's audience, a resource's
# name), so the product has to have the same one: the client runs in a network
# namespace of its own (the suite is in one already, as root of it), where
# localhost:<that port> is Caddy. The suite's other
# ports, its authorization servers, are passed on unaudited. Connections leave the
# namespace over Unix sockets, which relay.mjs takes on.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
client=("$@") url=${*: -1}
unset 'client[-1]'
port=$(sed -E 's#^http://[^/:]+:([0-9]+).*#\1#' <<<"$url")
folder=$(mktemp -d "${TMPDIR:-/tmp}/mcp.XXXXXX") # short: a socket's path has at most 107 bytes
trap 'rm -rf "$folder"' EXIT
logs=$(mktemp -d "$CONFORMANCE_LOGS/XXXXXX")

# The ports of the suite, which is the nearest process above that runs it.
suite=$PPID
while [[ $suite -gt 1 ]] && ! tr '\0' ' ' <"/proc/$suite/cmdline" | grep -q 'dist/index.js client'; do
	suite=$(sed 's/^.*) //' "/proc/$suite/stat" | cut -d' ' -f2)
done
inodes=$(find "/proc/$suite/fd" -lname 'socket:*' -printf '%l\n' 2>/dev/null | tr -dc '0-9\n')
mapfile -t ports < <(awk '$4 == "0A" {split($2, a, ":"); print $10, a[2]}' /proc/net/tcp /proc/net/tcp6 |
	while read -r inode hex; do grep -qx "$inode" <<<"$inodes" && echo $((16#$hex)); done | sort -u)

node "$here/relay.mjs" "$folder" "${ports[@]}" &
relay=$!
for p in "${ports[@]}"; do
	for _ in $(seq 400); do
		[[ ! -S $folder/$p.sock ]] || break
		sleep 0.02
	done
done
{
	printf '{\n\tadmin off\n\tauto_https off\n\tpersist_config off\n\tgrace_period 500ms\n'
	printf '\tmcp_audit {\n\t\tlog default {\n\t\t\toutput jsonl %s/audit.jsonl\n\t\t}\n\t}\n}\n' "$logs"
	for p in "${ports[@]}"; do
		printf 'http://:%s {\n\tbind 127.0.0.1\n' "$p"
		if [[ $p = "$port" ]]; then
			printf '\troute {\n\t\tmcp_audit {\n\t\t\tforward_headers Authorization\n\t\t\t%s\n\t\t}\n' "$CONFORMANCE_OPTION"
			printf '\t\treverse_proxy unix/%s/%s.sock {\n\t\t\tflush_interval -1\n\t\t}\n\t}\n}\n' "$folder" "$p"
		else
			printf '\treverse_proxy unix/%s/%s.sock\n}\n' "$folder" "$p"
		fi
	done
} >"$logs/Caddyfile"

# shellcheck disable=SC2016 # expanded inside
CLIENT_CONFIG=$logs/Caddyfile CLIENT_URL=$url CLIENT_PORT=$port CLIENT_LOG=$logs/caddy.log \
	XDG_DATA_HOME=$folder/data XDG_CONFIG_HOME=$folder/config \
	unshare -n "$CONFORMANCE_WORK/bin/loopback" bash -c '
	"$CONFORMANCE_CADDY" run --config "$CLIENT_CONFIG" --adapter caddyfile >"$CLIENT_LOG" 2>&1 &
	caddy=$!
	for _ in $(seq 1200); do
		(exec 3<>"/dev/tcp/127.0.0.1/$CLIENT_PORT") 2>/dev/null && break
		sleep 0.05
	done
	"$@" "$CLIENT_URL"
	status=$?
	kill $caddy
	wait $caddy
	exit $status' client "${client[@]}"
status=$?
kill $relay 2>/dev/null
wait $relay 2>/dev/null
exit $status
