"""What the tests of several rooms build on: one module per room, all of it typed."""
