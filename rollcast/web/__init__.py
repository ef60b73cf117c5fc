"""Serve the static files that the dashboard and the donor's page share: our own and two libraries."""
