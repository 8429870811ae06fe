"""The pages that only show: a module per screen."""
