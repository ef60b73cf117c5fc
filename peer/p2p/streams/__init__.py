"""Secure and multiplex libp2p connections: noise, yamux, buffers."""
