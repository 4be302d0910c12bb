{{- define "headrace.namespaces" -}}
{{- $own := list .Release.Namespace -}}
{{- (.Values.namespaces | default $own) | uniq | sortAlpha | toJson -}}
{{- end -}}

{{- define "headrace.replicas" -}}
{{- if .Values.ha }}{{ max 2 .Values.operator.replicas }}{{ else }}{{ .Values.operator.replicas }}{{ end -}}
{{- end -}}

{{/* Labels that select the pods of a component: they never change. */}}
{{- define "headrace.selector" -}}
app.kubernetes.io/name: headrace
app.kubernetes.io/component: {{ .component }}
headrace.dev/installation: {{ .root.Release.Namespace }}
{{- end -}}

{{- define "headrace.labels" -}}
{{ include "headrace.selector" . }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "headrace.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "headrace.containerSecurity" -}}
securityContext:
  runAsGroup: 65532
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
- {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "headrace.placement" -}}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}
