#!/usr/bin/env bash
# Certificates for a cluster: an authority of its own, and one certificate per node.
#
#   deploy/cluster/certificates.sh authority DIR         make DIR/ca.pem and DIR/ca.key; keeps what is there
#   deploy/cluster/certificates.sh node AUTHORITY DIR    make DIR/{ca.pem,node.pem,node.key} for this machine
#
# A node's certificate names all its addresses, "localhost" and "diffuspec"; the last is what
# rpc.tls.server_name expects. Whoever has ca.key can join the cluster: it belongs on its nodes and
# on the machine that starts them, nowhere else.
set -euo pipefail
umask 077
days=825

authority() {
    local out=$1
    mkdir -p "$out"
    if [ -e "$out/ca.key" ]; then
        echo "$out/ca.key is there already" >&2
        return
    fi
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days "$days" \
        -subj "/CN=diffuspec cluster authority" -keyout "$out/ca.key" -out "$out/ca.pem" \
        -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign"
}

node() {
    local authority=$1 out=$2 names="DNS:localhost,DNS:diffuspec,IP:127.0.0.1" address
    for address in $(hostname -I 2>/dev/null || true); do
        case $address in *:*) ;; *) names+=",IP:$address" ;; esac
    done
    mkdir -p "$out"
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=diffuspec" \
        -keyout "$out/node.key" -out "$out/node.csr"
    openssl x509 -req -in "$out/node.csr" -CA "$authority/ca.pem" -CAkey "$authority/ca.key" \
        -CAcreateserial -CAserial "$out/ca.srl" -days "$days" -out "$out/node.pem" \
        -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$names")
    cp "$authority/ca.pem" "$out/ca.pem"
    rm -f "$out/node.csr" "$out/ca.srl"
}

case "${1:-}:$#" in
    authority:2) authority "$2" ;;
    node:3) node "$2" "$3" ;;
    *) sed -n '2,9p' "$0" >&2; exit 2 ;;
esac
