"""Run workers on a Kubernetes cluster: one Job of one pod for each."""
