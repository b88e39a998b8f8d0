{{/*
A Secret with a CA and a certificate that it issued for `hosts`. An upgrade replaces them a year after they were made. Takes
a dict of root, name (of the Secret), hosts and labels; returns the Secret as JSON.
*/}}
{{- define "muster.certificate" -}}
{{- $days := 3650 }}
{{- $renewAfter := now | dateModify "+8760h" | date "2006-01-02" }}
{{- $known := lookup "v1" "Secret" .root.Release.Namespace .name }}
{{- $data := dict }}
{{- if $known }}
{{- $before := index ($known.metadata.annotations | default dict) "muster.dev/renew-after" | default "" }}
{{- if gt $before (now | date "2006-01-02") }}
{{- $data = $known.data }}
{{- $renewAfter = $before }}
{{- end }}
{{- end }}
{{- if not $data }}
{{- $authority := genCA (printf "%s-ca" .name) $days }}
{{- $issued := genSignedCert (first .hosts) nil .hosts $days $authority }}
{{- $data = dict "ca.crt" (b64enc $authority.Cert) "tls.crt" (b64enc $issued.Cert) "tls.key" (b64enc $issued.Key) }}
{{- end }}
{{- $annotations := dict "muster.dev/renew-after" $renewAfter }}
{{- $metadata := dict "name" .name "namespace" .root.Release.Namespace "labels" .labels "annotations" $annotations }}
{{- $kept := pick $data "ca.crt" "tls.crt" "tls.key" }}
{{- dict "apiVersion" "v1" "kind" "Secret" "type" "kubernetes.io/tls" "metadata" $metadata "data" $kept | toJson }}
{{- end }}
