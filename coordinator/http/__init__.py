"""Serve HTTP: routes and access to them, the stream, the audit log, the listening port."""
