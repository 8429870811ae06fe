"""The pages that change something, after a login and a confirmation."""
