"""Polling brokers and name servers, once for all viewers."""
