// Command kube is a whole Kubernetes in one binary: the first argument, or the
// name it was started by, picks the part. One link instead of seven keeps a
// cold build at about five minutes on two cores.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	// kubectl's plugins for cloud credentials are left out on purpose.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

// commands builds only the command that is asked for: each registers flags.
var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kubelet":                 kubeletCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kube-proxy":              func() *cobra.Command { return proxy.NewProxyCommand() },
}

func kubeletCommand() *cobra.Command {
	return kubelet.NewKubeletCommand(context.Background())
}

func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
	return 0
}

func runDNS() int {
	dnsserver.Directives = []string{
		"bind", "ready", "errors", "cache", "kubernetes",
	}
	coremain.Run()
	return 0
}

func names() string {
	all := []string{"coredns", "kubectl"}
	for name := range commands {
		all = append(all, name)
	}
	sort.Strings(all)
	return strings.Join(all, " ")
}

func run(part string) int {
	switch part {
	case "kubectl":
		return runKubectl()
	case "coredns":
		return runDNS()
	}
	if make, ok := commands[part]; ok {
		return cli.Run(make())
	}
	fmt.Fprintf(os.Stderr, "kube: no part %q; parts: %s\n", part, names())
	return 2
}

func main() {
	part := filepath.Base(os.Args[0])
	if part == "kube" {
		if len(os.Args) < 2 {
			fmt.Fprintf(os.Stderr, "usage: kube PART [flags]; parts: %s\n", names())
			os.Exit(2)
		}
		part = os.Args[1]
		os.Args = append([]string{part}, os.Args[2:]...)
	}
	os.Exit(run(part))
}
