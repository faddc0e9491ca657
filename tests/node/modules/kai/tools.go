//go:build tools

// Package tools names the programs that the node tests build from this module.
package tools

import (
	_ "github.com/NVIDIA/KAI-scheduler/cmd/binder"
	_ "github.com/NVIDIA/KAI-scheduler/cmd/podgrouper"
	_ "github.com/NVIDIA/KAI-scheduler/cmd/scheduler"
)
