//go:build tools

// Package tools names the programs that the node tests build from this module.
package tools

import (
	_ "sigs.k8s.io/node-feature-discovery/cmd/nfd-master"
	_ "sigs.k8s.io/node-feature-discovery/cmd/nfd-topology-updater"
	_ "sigs.k8s.io/node-feature-discovery/cmd/nfd-worker"
)
