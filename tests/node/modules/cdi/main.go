// The verdict of the CDI library, the one that container runtimes use, on specs: one JSON object a line.
//
// Arguments are files; each is read as a runtime reads it. "error" is what the library says of a bad spec, "minimum" the
// lowest version of the format that a good one needs, "devices" the qualified names that the runtime would resolve.
// "nodes" and "mounts" count what a container gets that asks for every device by name; "unusable" says why it gets none.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sort"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

type verdict struct {
	Path     string   `json:"path"`
	Error    string   `json:"error"`
	Minimum  string   `json:"minimum"`
	Devices  []string `json:"devices"`
	Nodes    int      `json:"nodes"`
	Mounts   int      `json:"mounts"`
	Unusable string   `json:"unusable"`
}

func judge(path string) (result verdict) {
	result.Path = path
	spec, err := cdi.ReadSpec(path, 0)
	if err == nil {
		result.Minimum, err = specs.MinimumRequiredVersion(spec.Spec)
	}
	if err != nil {
		result.Error = err.Error()
	} else if err = result.use(spec); err != nil {
		result.Unusable = err.Error()
	}
	return result
}

func (v *verdict) use(spec *cdi.Spec) error {
	container := &oci.Spec{Process: &oci.Process{}, Linux: &oci.Linux{}}
	for _, device := range spec.Devices {
		name := parser.QualifiedName(spec.GetVendor(), spec.GetClass(), device.Name)
		if _, _, parsed, err := parser.ParseQualifiedName(name); err != nil || parsed != device.Name {
			return fmt.Errorf("%s is not parsed back: %q, %v", name, parsed, err)
		}
		v.Devices = append(v.Devices, name)
		if err := spec.GetDevice(device.Name).ApplyEdits(container); err != nil {
			return fmt.Errorf("%s cannot be given to a container: %w", name, err)
		}
	}
	if err := spec.ApplyEdits(container); err != nil {
		return fmt.Errorf("the common edits cannot be made: %w", err)
	}
	sort.Strings(v.Devices)
	v.Nodes, v.Mounts = len(container.Linux.Devices), len(container.Mounts)
	return nil
}

func main() {
	verdicts := json.NewEncoder(os.Stdout)
	for _, path := range os.Args[1:] {
		if err := verdicts.Encode(judge(path)); err != nil {
			panic(err)
		}
	}
}
