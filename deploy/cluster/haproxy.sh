#!/bin/sh
# Start HAProxy with a bound on the time that the headers of a request may take.
#
# The file that Serve writes for HAProxy has none. Serve runs this in HAProxy's place, with the same
# arguments, if RAY_SERVE_HAPROXY_BINARY_PATH names it. DIFFUSPEC_HAPROXY names HAProxy itself,
# DIFFUSPEC_HEADER_SECONDS is the bound.
set -eu

before=
for argument in "$@"; do
    if [ "$before" = -f ]; then
        sed -i "/^defaults\$/a\\    timeout http-request ${DIFFUSPEC_HEADER_SECONDS:-10}s" "$argument"
    fi
    before=$argument
done
exec "${DIFFUSPEC_HAPROXY:-haproxy}" "$@"
