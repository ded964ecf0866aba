{{- define "penstock.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* The pipeline file: what the user says, and what follows from where the chart mounts things. */}}
{{- define "penstock.pipeline" -}}
{{- $places := dict "parquet" (dict "path" "/var/lib/penstock/lake") "iceberg" (dict "warehouse" "/var/lib/penstock/lake") -}}
{{- $destination := get $places (.Values.pipeline.destination.type | default "parquet") | default dict -}}
{{- $given := dict
  "source" (dict "type" "postgres" "url" "${file:/run/secrets/penstock/url}")
  "destination" $destination
  "state" "/var/lib/penstock/state/pipeline"
  "run" (dict "listen" (printf "0.0.0.0:%d" (int .Values.port))) -}}
{{- if .Values.shapes.enabled -}}
{{- $shapes := dict "port" (int .Values.shapes.port) "secret" "${file:/run/secrets/penstock-shapes/secret}" -}}
{{- $_ := set $given "lanes" (dict "shapes" $shapes) -}}
{{- end -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.pipeline) $given) -}}
{{- end -}}
