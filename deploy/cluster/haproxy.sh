#!/bin/sh
# Start HAProxy with a bound on the time that the headers of a request may take, and with JSON in
# place of the plain text that says that no application has a path.
#
# The file that Serve writes for HAProxy has neither. Serve runs this in HAProxy's place, with the same
# arguments, if RAY_SERVE_HAPROXY_BINARY_PATH names it. DIFFUSPEC_HAPROXY names HAProxy itself,
# DIFFUSPEC_HEADER_SECONDS is the bound.
set -eu

message='no application has this path now: it may be starting, or be deleted'
error='{"error":{"message":"'$message'","type":"invalid_request_error","param":null,"code":"not_found"}}'
not_found="status 404 content-type application/json string '$error'"
before=
for argument in "$@"; do
    if [ "$before" = -f ]; then
        sed -i \
            -e "/^defaults\$/a\\    timeout http-request ${DIFFUSPEC_HEADER_SECONDS:-10}s" \
            -e "s|status 404 content-type text/plain lf-string .*|$not_found|" "$argument"
    fi
    before=$argument
done

# When the actor of Serve that starts it is lost with its cluster, HAProxy frees its port, and ends
# with the last connection. Serve would leave it there for ever, with an error for every request.
set -- "${DIFFUSPEC_HAPROXY:-haproxy}" "$@"
if setpriv --pdeathsig USR1 true 2>/dev/null; then
    set -- setpriv --pdeathsig USR1 "$@"
fi
exec "$@"
