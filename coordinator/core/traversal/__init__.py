"""Help members behind routers to reach each other, from what they and others report."""
