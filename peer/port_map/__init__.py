"""Ask the router for a port by NAT-PMP or UPnP."""
