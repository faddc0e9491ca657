#!/bin/sh
# Makes the certificates here anew, for a hundred years: an authority, a server and a client that it vouches for, and
# another authority that knows none of them. They protect nothing; tests alone use them.
set -eu
cd "$(dirname "$0")"

authority() {
    openssl req -x509 -days 36500 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
        -subj "/CN=$1" -addext keyUsage=critical,keyCertSign -keyout "$1.key" -out "$1.crt"
}

issue() {
    openssl req -x509 -days 36500 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -CA authority.crt -CAkey authority.key \
        -subj "/O=system:nodes/CN=$1" -addext basicConstraints=critical,CA:FALSE -addext "extendedKeyUsage=$2" \
        -addext "subjectAltName=$3" -keyout "$1.key" -out "$1.crt"
}

authority authority
authority stranger
issue server serverAuth IP:127.0.0.1,DNS:kubernetes.default.svc
issue client clientAuth DNS:client
rm authority.key stranger.key
