"""Whether the code of users is free of type errors, in the view of mypy and of pyright."""
