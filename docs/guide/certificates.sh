#!/bin/sh
# A certificate authority of your own, and a certificate for nginx and the SuperLink that it signs:
#
#     sh docs/guide/certificates.sh superlink.example.com /etc/cflower
#
# Its names are that by which SuperNodes reach nginx; `localhost`, by which nginx checks the
# SuperLink; and 127.0.0.1, by which operators and the SuperLink's own processes reach it (without
# it every run stays "pending").
set -eu
cd "$2"
new_key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"

openssl req -x509 $new_key -days 3650 -subj "/CN=our federation" \
  -addext "basicConstraints=critical,CA:TRUE" \
  -addext "keyUsage=critical,keyCertSign,cRLSign" -keyout ca.key -out ca.crt
openssl req $new_key -subj "/CN=$1" -keyout server.key -out server.csr
cat > server.ext <<END
subjectAltName=DNS:$1,DNS:localhost,IP:127.0.0.1
basicConstraints=CA:FALSE
keyUsage=digitalSignature,keyEncipherment
extendedKeyUsage=serverAuth
END
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 \
  -extfile server.ext -out server.pem
