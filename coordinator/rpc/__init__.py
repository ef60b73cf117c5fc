"""Serve gRPC: turn messages into events and reject hostile input."""
