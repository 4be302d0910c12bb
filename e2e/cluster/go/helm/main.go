//go:build tools

// Package helm pins the helm client: go.mod and go.sum name its exact version,
// and the tools tag keeps this import out of ordinary builds.
package helm

import _ "helm.sh/helm/v3/cmd/helm"
