"""The pages over HTTP: handlers, sessions, and the protection of both."""
