//go:build tools

// Package tools names the programs that the node tests build from this module.
package tools

import (
	_ "sigs.k8s.io/kustomize/kustomize/v5"
)
