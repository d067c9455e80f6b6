"""`braid dev`, `serve`, `config`, `health`, `doctor`, `bench`: a node and the machine it runs on."""
