"""The wire protocol as plain objects: frames, commands, headers, bodies. No socket, no clock."""
