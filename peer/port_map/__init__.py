"""Ask the router for a port by NAT-PMP, PCP or UPnP."""
