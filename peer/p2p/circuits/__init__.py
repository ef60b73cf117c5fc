"""Relay streams between peers, and find members through the DHT."""
