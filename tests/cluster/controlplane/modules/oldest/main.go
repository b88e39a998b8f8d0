// What the oldest Kubernetes that we support says of CustomResourceDefinitions: files, or documents in one.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/util/yaml"
)

func main() {
	if os.Args[1] == "-version" {
		fmt.Println("0.29.0")
		return
	}
	refused := false
	for _, path := range os.Args[1:] {
		for _, crd := range definitions(path) {
			for _, problem := range problems(crd) {
				fmt.Println(crd.Name, problem)
				refused = true
			}
			fmt.Println(crd.Name, "was looked at")
		}
	}
	if refused {
		os.Exit(1)
	}
}

func definitions(path string) []*v1.CustomResourceDefinition {
	file, err := os.Open(path)
	fatal(err)
	defer file.Close()
	documents := yaml.NewYAMLOrJSONDecoder(bufio.NewReader(file), 4096)
	var found []*v1.CustomResourceDefinition
	for {
		crd := &v1.CustomResourceDefinition{}
		if err := documents.Decode(crd); errors.Is(err, io.EOF) {
			return found
		} else {
			fatal(err)
		}
		found = append(found, crd)
	}
}

func problems(crd *v1.CustomResourceDefinition) []string {
	v1.SetDefaults_CustomResourceDefinition(crd)
	v1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
	wanted := &internal.CustomResourceDefinition{}
	fatal(v1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, wanted, nil))
	for _, version := range wanted.Spec.Versions { // the API server adds those itself
		wanted.Status.StoredVersions = append(wanted.Status.StoredVersions, version.Name)
	}
	var said []string
	for _, problem := range validation.ValidateCustomResourceDefinition(context.Background(), wanted) {
		said = append(said, problem.Error())
	}
	return said
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}
