"""Write files with which other tools start a plan's workers: SkyPilot, Kubernetes, Terraform."""
