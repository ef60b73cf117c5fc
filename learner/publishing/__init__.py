"""Publish versions: encode, sign, push to the origin, retain."""
