//go:build tools

// Package tools names the module whose .proto files the wire contracts are compared with.
package tools

import (
	_ "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)
