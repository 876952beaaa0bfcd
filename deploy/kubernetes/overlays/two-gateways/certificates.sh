#!/bin/sh
# Prints the Secret holdfast-control-tls: an authority of its own, and one certificate that it signed
# for both pods. The authority's key is thrown away; run this again to replace all of them, before the
# DAYS (3650 unless you set it) are over. Certificates are read anew when their files change.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
days=${DAYS:-3650}
names="DNS:holdfast-0.holdfast-control.holdfast.svc,DNS:holdfast-1.holdfast-control.holdfast.svc"
printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\nkeyUsage=digitalSignature\n' \
  "$names" > "$folder/extensions"
{
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days "$days" \
    -subj "/CN=holdfast-control authority" -addext "keyUsage=critical,keyCertSign" \
    -keyout "$folder/ca.key" -out "$folder/ca.crt"
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=holdfast-control" \
    -keyout "$folder/tls.key" -out "$folder/tls.csr"
  openssl x509 -req -in "$folder/tls.csr" -CA "$folder/ca.crt" -CAkey "$folder/ca.key" \
    -CAcreateserial -days "$days" -extfile "$folder/extensions" -out "$folder/tls.crt"
} >&2
cat <<SECRET
apiVersion: v1
kind: Secret
metadata:
  name: holdfast-control-tls
  namespace: holdfast
  labels: {app.kubernetes.io/name: holdfast}
type: kubernetes.io/tls
data:
  ca.crt: $(base64 < "$folder/ca.crt" | tr -d '\n')
  tls.crt: $(base64 < "$folder/tls.crt" | tr -d '\n')
  tls.key: $(base64 < "$folder/tls.key" | tr -d '\n')
SECRET
