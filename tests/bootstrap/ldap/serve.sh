#!/bin/bash
# Puts an LDAP server with TLS on the host, as directory.test: what the disk has already is used. `serve.sh [ADDRESS]`
set -euo pipefail

authority() { # NAME
  openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=$1" -keyout "$1.key" -out "$1.pem"
}
cd /opt/ldap
if [[ ! -d database ]]; then
  /opt/install.sh slapd
  authority authority
  authority another
  openssl req -newkey rsa:2048 -nodes -subj /CN=directory.test -keyout server.key -out server.csr
  openssl x509 -req -in server.csr -CA authority.pem -CAkey authority.key -days 2 -out server.pem \
    -extfile <(echo subjectAltName=DNS:directory.test)
  echo "${1:-127.0.0.1} directory.test another.test" >>/etc/hosts
  mkdir database
  ssh-keygen -q -t ed25519 -N '' -f ada
  sed -i -E "s#^uid: (ada|ubuntu)\$#&\nsshPublicKey: $(<ada.pub)#" people.ldif
  slapadd -f slapd.conf -l people.ldif
fi
slapd -f slapd.conf -h 'ldap://directory.test ldaps://directory.test'
