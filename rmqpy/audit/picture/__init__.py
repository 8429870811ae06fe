"""The store map: the files of replicas along the axis of physical offsets, as a picture."""
