#!/usr/bin/env bash
# Certificates for a cluster, of an authority of its own.
#
#   certificates.sh authority DIR           make DIR/ca.pem and DIR/ca.key; keep them if they exist
#   certificates.sh node AUTHORITY DIR      make DIR/{ca.pem,node.pem,node.key} for this machine
#   certificates.sh request DIR             make DIR/node.key and print a signing request
#   certificates.sh sign AUTHORITY ADDRESS  read a signing request, print a certificate for ADDRESS
#
# A certificate names the machine's addresses, "localhost" and "diffuspec"; the last is what
# rpc.tls.server_name expects. ca.key signs for every node of the cluster: keep it on one machine,
# the head, and have the other nodes' requests signed there (see deploy/cluster/certificates.py).
# A certificate is valid for 825 days, but no longer than its authority.
set -euo pipefail
umask 077
days=825
new_key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)

authority() {
    local out=$1
    mkdir -p "$out"
    if [ -e "$out/ca.key" ]; then
        echo "$out/ca.key exists" >&2
        return
    fi
    openssl req -x509 "${new_key[@]}" -days "$days" \
        -subj "/CN=diffuspec cluster authority" -keyout "$out/ca.key" -out "$out/ca.pem" \
        -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign"
}

request() {
    local out=$1
    mkdir -p "$out"
    openssl req "${new_key[@]}" -subj "/CN=diffuspec" -keyout "$out/node.key"
}

sign() {
    local authority=$1 names="DNS:localhost,DNS:diffuspec,IP:127.0.0.1" address
    shift
    for address in "$@"; do
        case $address in *:*) ;; *) names+=",IP:$address" ;; esac
    done
    openssl x509 -req -CA "$authority/ca.pem" -CAkey "$authority/ca.key" -days "$days" \
        -set_serial "0x$(openssl rand -hex 16)" \
        -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$names")
}

node() {
    local authority=$1 out=$2
    mkdir -p "$out"
    # shellcheck disable=SC2046  # one word per address
    request "$out" | sign "$authority" $(hostname -I 2>/dev/null || true) > "$out/node.pem.new"
    cp "$authority/ca.pem" "$out/ca.pem"
    mv "$out/node.pem.new" "$out/node.pem"
}

case "${1:-}:$#" in
    authority:2 | node:3 | request:2 | sign:3) "$@" ;;
    *) sed -n '2,12p' "$0" >&2; exit 2 ;;
esac
