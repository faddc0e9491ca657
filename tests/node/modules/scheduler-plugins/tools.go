//go:build tools

// Package tools names the program that the node tests build from this module.
package tools

import (
	_ "sigs.k8s.io/scheduler-plugins/cmd/scheduler"
)
