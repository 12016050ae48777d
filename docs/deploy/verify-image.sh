#!/usr/bin/env bash
# Build the CPU image from the Dockerfile, and test it with the settings of compose.yaml and Kubernetes. Podman builds in
# a chroot, without Docker, a daemon or a registry. If python:3.11-slim can't be pulled, the script uses a clean Debian 12
# with Debian's Python 3.11 (debootstrap, from the mirror of this machine's apt, or from MIRROR).
#
#   sudo docs/deploy/verify-image.sh [option of podman build]…     e.g. --volume /etc/pip.conf:/etc/pip.conf:ro
#
# The script takes minutes, and some 8 GB of disk in TMPDIR until it ends. Exit status 2: a requirement is missing.
set -euo pipefail
PORT=${PORT:-18080}

for tool in podman runc debootstrap curl; do
    command -v "$tool" > /dev/null || { echo "needs $tool: apt-get install --no-install-recommends $tool" >&2; exit 2; }
done
[ "$(id -u)" = 0 ] || { echo "needs root, for chroot and mounts" >&2; exit 2; }

# Use a separate podman. Its storage and state are mounts of this script's namespace, and end with the script.
[ -n "${ISOLATED:-}" ] || ISOLATED=yes exec unshare --mount "$0" "$@"
work=$(mktemp -d "${TMPDIR:-/var/tmp}/isosphere-image.XXXXXX")
mkdir -p "$work/containers" /var/lib/containers /run/containers /run/libpod
mount --bind "$work/containers" /var/lib/containers
for state in /run/containers /run/libpod /dev/shm; do mount -t tmpfs tmpfs "$state"; done
pod() { podman --runtime runc --cgroup-manager cgroupfs "$@"; }
cleanup() {
    pod rm --all --force --time 0 > /dev/null || true # containers that still run
    umount --recursive --lazy /var/lib/containers
    rm -rf "$work"
}
trap cleanup EXIT
cd "$(dirname "$0")/../.."
passed() { echo "ok: $*"; }
failed() { echo "FAILED: $*" >&2; pod logs server >&2 || true; exit 1; }

if ! pod pull --quiet docker.io/library/python:3.11-slim 2> /dev/null; then
    mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -n 1)}
    echo "python:3.11-slim can't be pulled: Debian 12 takes its place"
    debootstrap --variant=minbase --include=ca-certificates,python3-venv bookworm "$work/root" "$mirror" > "$work/log" ||
        { tail "$work/log" >&2; exit 2; }
    chroot "$work/root" python3 -m venv /usr/local # `python` and `pip`, at the same paths as in that image
    tar --directory "$work/root" --create . | pod import --quiet - docker.io/library/python:3.11-slim > /dev/null
    rm -rf "$work/root"
fi

# --format docker: OCI's own format has no HEALTHCHECK
pod build --isolation chroot --network host --format docker --target cpu --tag isosphere "$@" .
passed "built, $(pod image inspect --format '{{.Size}}' isosphere | numfmt --to=si)B"

limits=(--ulimit nofile=1024:1024 --ulimit nproc=4096:4096) # not every root user may set podman's default limits
as_served=(--network host --read-only --cap-drop all --security-opt no-new-privileges --tmpfs /tmp --volume data:/data)
keys=/data/keys.json

for absent in torch transformers sentence_transformers; do
    said=$(pod run --rm "${limits[@]}" "${as_served[@]}" --entrypoint python isosphere -c "import $absent" 2>&1) &&
        failed "$absent can be imported"
    [[ $said == *"No module named '$absent'"* ]] || failed "importing $absent: $said"
done
passed "no torch, transformers, sentence-transformers"

status=0
said=$(pod run --rm "${limits[@]}" "${as_served[@]}" --env ISOSPHERE_PORT="$PORT" isosphere 2>&1) || status=$?
[[ $status = 2 && $said == *--api-keys-file* ]] || failed "started for everybody: $said"
passed "refuses to serve others without keys"

key=$(pod run --rm "${limits[@]}" "${as_served[@]}" isosphere keys add me --scopes read,write --api-keys-file "$keys" 2> /dev/null)
started=$SECONDS
pod run --detach --name server "${limits[@]}" "${as_served[@]}" \
    --env ISOSPHERE_PORT="$PORT" --env ISOSPHERE_API_KEYS_FILE="$keys" --env ISOSPHERE_NO_DEMO=true isosphere > /dev/null
ask() { curl --silent --max-time 30 --noproxy '*' "http://127.0.0.1:$PORT$1" "${@:2}"; }
code() { ask "$@" --output /dev/null --write-out '%{http_code}'; }
until [ "$(code /readyz)" = 200 ]; do
    [ "$(pod inspect --format '{{.State.Running}}' server)" = true ] || failed "ended while starting"
    ((SECONDS - started < 300)) || failed "not ready after 300 s"
    sleep 1
done
passed "ready in $((SECONDS - started)) s, read-only root, $(pod exec server id)"

json=(--header 'content-type: application/json')
body=(--data '{"inputs": "A man plays the guitar."}')
bearer=(--header "authorization: Bearer $key")
[ "$(code /embed "${json[@]}" "${body[@]}")" = 401 ] || failed "/embed without a key"
vector=$(ask /embed "${json[@]}" "${body[@]}" "${bearer[@]}")
[ "$(tr -cd , <<< "$vector" | wc -c)" = 383 ] || failed "/embed: $vector"
passed "/embed: 401 without the key, 384 numbers with it"
[ "$(code /corpora/notes --request PUT "${json[@]}" --data '{}' "${bearer[@]}")" = 201 ] || failed "PUT /corpora/notes"
ask /corpora/notes/documents "${json[@]}" "${bearer[@]}" --data '{"documents": [{"text": "The roof was repaired."}]}' > /dev/null
found=$(ask /corpora/notes/search "${json[@]}" "${bearer[@]}" --data '{"query": "what was mended?"}')
[[ $found == *"The roof was repaired."* ]] || failed "search: $found"
passed "a document is kept in the volume and found"
metrics=$(ask /metrics)
[[ $metrics == *$'\n'"isosphere_queued_tokens "* ]] || failed "/metrics: $metrics"
peak=$(pod exec server python -c 'print(*(line.split()[1] for line in open("/proc/1/status") if line[:5] == "VmHWM"))')
passed "/metrics; $((peak / 1024)) MiB at most so far"
pod healthcheck run server > /dev/null || failed "the image's HEALTHCHECK"
passed "HEALTHCHECK"

stopping=$SECONDS
pod stop --time 30 server > /dev/null
[ "$(pod inspect --format '{{.State.ExitCode}}' server)" = 0 ] || failed "SIGTERM"
passed "SIGTERM: drained and ended with 0 in $((SECONDS - stopping)) s"
