// etcd as it is, built from its module: the program that the wheel braidlog-etcd carries.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
