//go:build tools

// Package tools names the programs that the node tests build from this module.
package tools

import (
	_ "helm.sh/helm/v4/cmd/helm"
)
