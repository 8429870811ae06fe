"""Record the traffic of a broker, and replay it against other brokers: ``rmqpy record`` and
``rmqpy replay``.

A recording (:mod:`rmqpy.traffic.recording`) has the frames of a proxy (:mod:`rmqpy.traffic.proxy`),
or sends that are made of the messages of a store (:mod:`rmqpy.traffic.stored`). A replay
(:mod:`rmqpy.traffic.replay`) carries out its requests at another broker, and compares the answers
and what consumers received (:mod:`rmqpy.traffic.comparison`).
"""
