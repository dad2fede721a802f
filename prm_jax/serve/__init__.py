"""Serves PRMs over HTTP, in the forms that clients of other servers speak."""
