"""``rmqpy rehearse``: copy a live group as an observer or a learner, and judge the copy.

Nothing here registers with a name server, joins a group, or acknowledges a message. Modules, from
questions to files: :mod:`.rehearsed_group` asks, :mod:`.suitability` refuses what cannot work,
:mod:`.shadow` stores what the master sends, :mod:`.copying` follows it, :mod:`.workspace` owns the
directory.
"""
